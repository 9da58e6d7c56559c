"""Which lines the training thread executes, and the main threads of the processes of its job.

Sampled over the whole run in constant memory, from this process: nothing of it runs in others. The
role of a child is its name without its number, or, where it was given none, the function it runs; of
a script or module it is its name, and of an actor of Ray its class.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.base.watch_format import LOADER_WORKER
from stepscope.record import fork_warnings
from stepscope.record.call_sites import is_internal, is_library
from stepscope.record.patch import ignoring
from stepscope.record.samples.loop_samples import StackSampler, StackSamples, Unavailable, line_of
from stepscope.record.unreplaced import OwnFunctions, os, time

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
    """Samples the thread that calls `begin`, from then on; nothing where it cannot."""

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
    own = stack[: next((at for at, file in enumerate(files) if file.endswith(end)), 0)]
    run = [place for place in own if not is_internal(samples.places[place].file)]
    if loads or not run:
        return _line(samples, own, LOADER_WORKER) if loads else None
    unnamed = _UNNAMED.fullmatch(name)
    role = samples.places[run[-1]].function if unnamed else _NUMBER.sub("", name) or name
    return _line(samples, own, role)


def _line(samples: StackSamples, stack: list[int], role: str) -> Line | None:
    """The line of the program that a stack is at."""
    line = line_of(samples, stack)
    return (*line, role) if line else None
