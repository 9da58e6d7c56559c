"""A watched run: a short vector of each step from the import of a framework to the end."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.base.watch_format import LOADER_WORKER, OF_CPU, OF_JAX, SUFFIX, TIMES
from stepscope.errors import CaptureError
from stepscope.record import fork_warnings
from stepscope.record.call_sites import is_internal, is_library
from stepscope.record.manifest import Run
from stepscope.record.memory.out_of_memory import AllocationFailure, verdict
from stepscope.record.options import RecordOptions, shown, target_path
from stepscope.record.patch import ignoring, undo
from stepscope.record.recording import call_in_forked_children
from stepscope.record.samples.loop_samples import StackSampler, StackSamples, Unavailable, line_of
from stepscope.record.session import Ending, OfOneProcess, Session
from stepscope.record.unreplaced import OwnFunctions, os, time
from stepscope.record.watch.requests import Requests
from stepscope.record.watch.step_log import DeviceEvents, StepClocks, StepLog, works_on_device
from stepscope.record.watch.watch_file import WatchFile

if TYPE_CHECKING:
    from stepscope.record.jax.jit_calls import JitCall

_FLUSH_NS = 100_000_000  # 0.1 s: a program may ask for metrics, and so count, after each step
_WARMUP = 2  # steps before those that `stepscope record` records


class WatchSession(OfOneProcess):
    """Watches the run in this process; the program goes on, whatever fails here."""

    def __init__(self, run: Run, path: Path) -> None:
        super().__init__()
        self.run, self.path = run, path
        self.failure: str | None = None
        self._file: WatchFile | None = None
        self._log: StepLog | None = None
        self._detach: list[Callable[[], object]] = []
        self._optimizers: Callable[[], list[Any]] = list
        self._worker_starts: Callable[[], dict[str, int] | None] = lambda: None
        self._told: dict[str, float] = {}  # sums when metrics were last asked for
        self._facts: dict[str, Any] = {}
        self._flush_after_ns = 0
        self._samples: LineSamples | None = None
        self._requests: Requests | None = None
        self._wanted = 0  # steps that `stepscope record` asked for
        self._recording: Session | None = None
        self._ended = False
        self._noting = partial(ignoring, Exception, then=self._give_up)  # where no hook of torch is running

    @classmethod
    def of_program(cls, name: str, command: list[str], output: str | Path | None = None) -> WatchSession:
        """Of this process; its file is `output` or named after the program, in a folder for ranks."""
        run = Run(command, RecordOptions())
        name += "-watch" if run.rank.world_size > 1 else ""
        return cls(run, target_path(output, name, run.rank, SUFFIX))

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return self._log.steps if self._log else 0

    def metrics(self) -> dict[str, float]:
        """Mean ms of each part of the steps since the last call; nothing if none has ended."""
        if not (self._log and self._file):
            return {}
        self._log.count_noted()
        sums = self._file.sums
        since = {field: total - self._told.get(field, 0.0) for field, total in sums.items()}
        self._told, count = sums, since["count"]
        if not count:
            return {}
        known = TIMES if works_on_device() else OF_CPU
        measured = known if self._log.has_trained else OF_JAX
        parts = {f"{field}_ms": since[field] / count for field in measured}
        return {"steps": count, "step_ms": 1e-6 * since["wall_ns"] / count, **parts}

    def attach(self) -> None:
        """Watch PyTorch, which has been imported."""
        with self._noting(), OwnFunctions():
            from stepscope.record.run_shares.activity_hooks import ActivityHooks
            from stepscope.record.torch_internals import hide_methods

            log = self._begin()
            hide_methods(StepLog, StepClocks, DeviceEvents)
            log.clocks.follow_torch()
            log.before_backward = lambda: self._record_if_wanted(is_torch=True)
            hooks = ActivityHooks(log)
            self._optimizers, self._worker_starts = hooks.optimizers, hooks.workers.describe
            if self._samples:
                hooks.on_workers = self._samples.follow_children
            self._detach.append(hooks.remove)

    def attach_jax(self) -> None:
        """Watch JAX, which has been imported."""
        with self._noting(), OwnFunctions():
            from stepscope.record.jax.compilation_counter import CompilationCounter
            from stepscope.record.jax.jax_step_detector import JaxStepDetector
            from stepscope.record.jax.jit_calls import JitCallWatch
            from stepscope.record.jax.program_ranges import SAVING, LibraryRanges

            log, detector = self._begin(), JaxStepDetector()

            def ranging(name: str) -> AbstractContextManager[None]:
                return log.library_call(saves=name.startswith(SAVING))

            def returned(call: JitCall) -> None:
                with self._noting():
                    if not detector.boundary:  # the first call: the program has imported its libraries
                        self._detach.append(LibraryRanges(ranging).remove)
                    if detector.advance(call.name, call.inputs, call.outputs) and not log.has_trained:
                        log.end_jax_step()
                        self._record_if_wanted(is_torch=False)

            def compiled(seconds: float, is_last: bool) -> None:
                log.clocks.add_compilation(sys._getframe(2), round(1e9 * seconds), int(is_last))

            self._detach += [JitCallWatch(returned).remove, CompilationCounter(on_part=compiled).close]

    def _begin(self) -> StepLog:
        """The log of both frameworks."""
        if self._log is None:
            self._file = WatchFile(self.path)
            self._log = StepLog(self._file.add_step, self._flush_now_and_then, self._fail)
            # Of the clock of steps; others may have the core between the readings of both.
            ahead_ns = max(time.time_ns() - time.perf_counter_ns() for _ in range(3))
            self._facts = {
                "begun_unix_ns": self._log.begun_ns + ahead_ns,
                "created_unix_ns": self.run.created_unix_ns,
                "rank": self.run.rank.rank,
                "command": " ".join(self.run.command)[:2000],
            }
            self._detach.append(self._log.clocks.remove)
            call_in_forked_children(self.detach)
            self._samples = LineSamples(self._log.begun_ns, self._facts["begun_unix_ns"])
            self._samples.begin()
            self._detach.append(lambda: self._samples and self._samples.stop())
            self._put_text()
            self._file.flush()
            # Once the file can be read. It is watched all the same, without `status` and `record`.
            with ignoring(Exception):
                self._requests = Requests(self.path)
                self._detach.append(self._requests.close)
        return self._log

    def _give_up(self, error: Exception) -> None:
        self._fail(error)
        self.detach()

    def _fail(self, error: Exception) -> None:
        text = str(error) if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}"
        self.failure = self.failure or text
        if self._log:
            self._log.before_backward = self.detach  # torch must not lose a hook while it calls them

    def detach(self) -> None:
        """Leave the frameworks as they were."""
        undo(self._detach)

    def _flush_now_and_then(self) -> None:
        now = time.perf_counter_ns()
        if now > self._flush_after_ns and self._file and not self._ended:
            self._flush_after_ns = now + _FLUSH_NS
            self._put_samples()
            self._put_text()
            self._file.flush()
            if self._requests and not self._recording:
                self._wanted = self._requests.wanted()

    def _put_text(self) -> None:
        if self._file and self._log:
            places = list(self._log.places.values())
            processes = self._samples.processes if self._samples else {}
            about = {"on_device": works_on_device(), "worker_starts": self._worker_starts() or {}}
            self._file.put_text({**self._facts, **about, "processes": processes, "places": places})

    def _put_samples(self, *, is_end: bool = False) -> None:
        if self._samples and self._file and self._log and self._log.steps:
            self._samples.follow_children()
            if samples := self._samples.read_if_due(is_end=is_end):
                self._file.put_samples(*samples)
            if row := self._log.device.read_if_due():
                self._file.add_device(row)

    def finish(self, ending: Ending) -> None:
        """Write the end of the file; a forked child leaves it alone."""
        if self._ended or self.is_forked:
            return
        if self._recording:
            with ignoring(Exception):
                self._recording.finish(ending)
        if self._log and self._file and not self.failure:
            self._log.count_noted()
            self._log.tell_known(most_late=0)
            self._facts["outcome"] = ending.outcome
            with ignoring(Exception):  # as after an interrupt while they were read
                self._put_samples(is_end=True)
            self._put_text()
            self._file.close()
            self.failure = self._file.failure or None
        self._ended = True
        self.detach()

    def run_out_of_memory(self, failed: AllocationFailure) -> str:
        """Note what held the memory as an allocation failed; that in words."""
        text = verdict(failed, ())
        with ignoring(Exception):  # optimizers of others may hold anything
            from stepscope.record.memory.memory_recorder import list_storages
            from stepscope.record.module_registry import ModuleRegistry

            text = verdict(failed, list_storages(ModuleRegistry(), self._optimizers(), {}))
        self._facts["out_of_memory"] = text.removeprefix("out of memory on ")
        return text

    def closing_lines(self) -> Iterator[str]:
        if self.failure:
            yield f"the watch failed: {self.failure}"
        elif self._log is None:
            yield "nothing was watched: the run imported neither torch nor JAX"
        else:
            path = shown(self.path.parent if self.run.rank.world_size > 1 else self.path)
            yield f"watched {self._log.steps:,} step{'s' * (self._log.steps != 1)}; wrote {path}"
            yield f"next: stepscope report {path}"

    # -- recordings on demand: on the thread that trains, where no hook of the framework is being called

    def _record_if_wanted(self, *, is_torch: bool) -> None:
        with self._noting():
            session = self._recording
            if session and self._requests and session.is_over:
                session.finish(Ending())  # leaves the framework as it was
                self._recording, result = None, session.result
                count = len(result.steps_recorded) if result else 0
                told = [f"recorded {count} step{'s' * (count != 1)}", *result.warnings] if result else []
                message = session.failure or "; ".join(told)
                file = str(session.path) if session.file.is_written else ""
                self._requests.answer({"message": message, "file": file})
            elif self._wanted and self._log:
                self._begin_recording(self._log.steps, is_torch)

    def _begin_recording(self, step: int, is_torch: bool) -> None:
        name = f"{self.path.name.removesuffix(SUFFIX)}-step{step + 1}.stepscope"
        run = Run(self.run.command, RecordOptions(warmup=_WARMUP, steps=self._wanted), rank=self.run.rank)
        self._recording, self._wanted = Session(run, self.path.with_name(name)), 0
        if is_torch:
            self._recording.attach(only_training=True)
        else:
            self._recording.attach_jax()


# -- which lines the training thread executes, and the main threads of the processes of its job

_EVERY_NS = 20_000_000  # at first; chosen: 15 samples in a stretch of 0.3 s. The sampler thins them out
_LATER = 1.05  # of the length of the run when they were last read: that takes up to 15 ms
_SOONEST_NS = 1_000_000_000  # 1 s; chosen: what a kill may lose of a short run
_FETCH = "torch/utils/data/_utils/fetch.py"
_LOADS, _BEGINS = "torch/utils/data/_utils/worker.py", "multiprocessing/process.py"
_AUTOGRAD = "torch/autograd/"  # where a thread sleeps, another of its process works
_UNNAMED = re.compile(r"(Fork|Spawn|ForkServer)?Process-[\d:]+")  # CPython, multiprocessing/process.py
_NUMBER = re.compile(r"[-_ :.]*\d[\d:.]*$")
# What setproctitle makes of an actor (Ray 2.60); others are idle, or serve Ray itself.
_ACTOR = re.compile(r"ray::(?!IDLE|DashboardAgent|RuntimeEnvAgent)(\w+)")
# The first word of a command of Python's that is no option and no option's value.
_PROGRAM = re.compile(r"[^\0]*(?:\0-[XW]\0[^\0]*|\0-(?![cm]\0)[^\0]*)*\0(-m\0)?([^-\0][^\0]*)")
_MANAGERS = re.compile(r"(Sync|Base)?Manager-")  # processes that only keep objects for others
Line = tuple[str, str, int, str]  # function, file and number, and the role of the child, if it is one
Lines = list[Line]  # the most frequent first
Samples = list[tuple[int, int, int]]  # ns since the run began, position in the lines, whether it slept


class LineSamples:
    """Samples the thread that calls `begin`, from then on; nothing where it cannot.

    Sampled over the whole run in constant memory, from this process: nothing of it runs in others. The
    role of a child is its name without its number, or, where it was given none, the function it runs; of
    a script or module it is its name, and of an actor of Ray its class.
    """

    def __init__(self, begun_ns: int, begun_unix_ns: int) -> None:
        self._begun_ns, self._begun_unix_ns, self._after_ns = begun_ns, begun_unix_ns, 0
        self._sampler: StackSampler | None = None
        self._names: dict[int, str] = {}  # of children that are followed, by process
        self._programs: dict[int, str] = {}  # the roles of other processes
        self._lines: dict[tuple[int, int], Line | None] = {}  # of each stack of each process
        self.processes: dict[str, int] = {}  # how many of them were seen, by role
        self.stop: Callable[[], object] = lambda: None

    def read_if_due(self, *, is_end: bool = False) -> tuple[Lines, Samples] | None:
        """All samples so far, about twenty times in each doubling of the run, and at its end."""
        now = time.perf_counter_ns()
        if now < self._after_ns and not is_end:
            return None
        since_ns = now - self._begun_ns
        self._after_ns = self._begun_ns + max(round(_LATER * since_ns), since_ns + _SOONEST_NS)
        if not (sampler := self.begin()):
            return None
        self._follow_programs(sampler)
        if not (samples := sampler.so_far()).stacks:
            return None
        known, seen = self._lines, set(zip(samples.stack, samples.child, strict=True))
        self._lines = {key: known[key] if key in known else self._line(samples, *key) for key in seen}
        roles = {(child, line[3]) for (_, child), line in self._lines.items() if line and child}
        self.processes = Counter(role for _, role in roles)
        return _described(samples, self._lines, self._begun_unix_ns)

    def _line(self, samples: StackSamples, stack: int, process: int) -> Line | None:
        if (name := self._names.get(process)) is None:
            return _line(samples, samples.stacks[stack], self._programs.get(process, ""))
        return _line_of_child(samples, samples.stacks[stack], name)

    def follow_children(self) -> None:
        """Sample the processes that `multiprocessing` has started in this one meanwhile."""
        with ignoring(Exception):  # the program goes on; another thread may start one right now
            started = vars(sys.modules["multiprocessing.process"])["_children"]
            for child in [child for child in list(started) if child.pid not in self._names]:
                if (sampler := self.begin()) and not _MANAGERS.match(child.name):
                    sampler.follow(child.pid)
                self._names[child.pid] = child.name

    def _follow_programs(self, sampler: StackSampler) -> None:
        """Sample the Python processes that were started in other ways, of an actor those beside it."""
        with ignoring(OSError), OwnFunctions():  # a system without /proc; a process that has ended
            own, known = os.getpid(), self._names.keys() | self._programs.keys()
            is_actor = _ACTOR.match(_command_of(own))
            for process in set(_below(os.getppid() if is_actor else own)) - known - {own}:
                if role := _role_by_command(_command_of(process), _command_of(own)):
                    sampler.follow(process)
                    self._programs[process] = role

    def begin(self) -> StackSampler | None:
        """The sampler, which the first call starts; None where there can be none."""
        with ignoring(Unavailable, OSError):
            if not self._sampler:
                fork_warnings.watch()
                self._sampler = StackSampler(_EVERY_NS)
                self.stop = self._sampler.stop
        return self._sampler


def _below(process: int) -> Iterator[int]:
    """The processes below one that run the same Python."""
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            with ignoring(OSError):  # it has ended
                if os.path.samefile(f"/proc/{child}/exe", "/proc/self/exe"):
                    yield child
                yield from _below(child)


def _command_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")


def _role_by_command(command: str, own: str) -> str:
    """The role of a process; empty for a copy of this one, code of an option, and installed programs."""
    if actor := _ACTOR.match(command):
        return actor[1]
    program = _PROGRAM.match(command)
    if command == own or not program or is_library(program[2]):
        return ""
    name = program[2].split(".")[-1] if program[1] else Path(program[2]).stem
    return _NUMBER.sub("", name) or name


def _described(
    samples: StackSamples, lines: dict[tuple[int, int], Line | None], begun_unix_ns: int
) -> tuple[Lines, Samples]:
    seen, counts = list(zip(samples.stack, samples.child, strict=True)), Counter[Line]()
    for key, count in Counter(seen).items():
        if line := lines[key]:
            counts[line] += count
    numbers = {line: at for at, (line, _) in enumerate(counts.most_common())}
    number_of = {key: numbers[line] for key, line in lines.items() if line}
    helped = [bool(stack) and _AUTOGRAD in samples.places[stack[0]].file for stack in samples.stacks]
    return list(numbers), [
        (ns - begun_unix_ns, number_of[key], int(slept and not helped[key[0]]))
        for ns, key, slept in zip(samples.times_ns, seen, samples.waits, strict=True)
        if key in number_of
    ]


def _line_of_child(samples: StackSamples, stack: list[int], name: str) -> Line | None:
    """None where a loader's worker makes no batch now, and as a process begins or ends.

    Below are the frames of the loop that forked it, or of what spawned it.
    """
    files = [samples.places[place].file for place in stack]
    loads = any(file.endswith(_LOADS) for file in files)
    end = _FETCH if loads else _BEGINS
    at = next((at for at, file in enumerate(files) if file.endswith(end)), 0)
    own = stack[:at]
    run = [place for place in own if not is_internal(samples.places[place].file)]
    # `run` of the process, or of a subclass, calls what is its own; others set it up, or end it.
    runs = any(samples.places[place].function.endswith("run") for place in stack[max(at - 1, 0) : at + 1])
    if loads or not (run and runs):
        return _line(samples, own, LOADER_WORKER) if loads else None
    unnamed = _UNNAMED.fullmatch(name)
    role = samples.places[run[-1]].function if unnamed else _NUMBER.sub("", name) or name
    return _line(samples, own, role)


def _line(samples: StackSamples, stack: list[int], role: str) -> Line | None:
    """The line of the program that a stack is at."""
    line = line_of(samples, stack)
    return (*line, role) if line else None
