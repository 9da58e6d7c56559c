"""Makes a vector of each step from what the hooks of the run's shares note (`ActivityHooks`).

Hooks note events with their time; once a second the events are counted, step by step. Evaluation and
checkpoints lie between two optimizer steps: a step's wall time includes them, and its vector says
how much they took. What is called an evaluation is decided as for the shares (`Activity.stage`).
The first step is part of the start.

At the end of each step clocks and counters are read, each as a sum since the run began.
"""

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, repeat, starmap
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from stepscope.base.watch_format import OF_DEVICE
from stepscope.record.call_sites import LIBRARIES, is_internal, user_frames
from stepscope.record.patch import Hooks, around_compilations, ignoring, replace
from stepscope.record.run_shares.activity_log import Activity, ActivityLog, NestedDurations
from stepscope.record.step_detector import StepDetector
from stepscope.record.unreplaced import os, time
from stepscope.record.watch.watch_file import Vector, moved

# In ns since the run began, of the thread that trains: collectives that Python waits for, garbage
# collection, compilation, CPU time, how long it could run but others had the cores, and the CPU time
# of the other threads of its process.
Sums = tuple[int, ...]
_DEEPEST = 200  # callers of a library that are looked at, until one is the program's
_PARTS = INPUT, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT = range(5)
_PART_OF_KIND = {"backward": BACKWARD, "optimizer": OPTIMIZER}
_PART_OF_STAGE = {"evaluation": EVALUATION, "rollout": EVALUATION, "checkpointing": CHECKPOINT}
_KINDS = {"evaluation": "evaluation", "rollout": "rollout", "checkpointing": "checkpoint"}  # by stage
_MOST_PLACES = 100  # the file has room for them
_LONG_NS = 1_000_000  # of a collection; chosen: younger objects are collected in less, at any line
_MS = 1e-6  # of a ns
_NOTABLE_NS = 200_000  # off the CPU; chosen: with less, reading how long it queued takes a tenth of that
_EVERY_NS, _EACH = 1_000_000_000, 300  # of `DeviceClock`: 1 s as NVML's own period; 8 hours fit in the file
Line = tuple[str, str, str, int]  # kind, function, file, line
Stamp = tuple[str, int, tuple[CodeType | None, int]]  # of a collection: phase, ns, and code with its line
# What begins on the device as this is noted, a position in `watch_format.OF_DEVICE`; None for other work.
_BEGINS = {"begin_backward": 0, "end_backward": None, "begin_step": 1, "end_step": None}
_MOST_MARKS = 20_000  # of a step; chosen: more than micro-batches and collections make, a few MB
_MOST_LATE = 64  # steps that the device may be behind; chosen: its queue holds 1,024 launches
Mark = tuple[int | None, Any]  # what begins, and the event


class StepClocks(Hooks):
    """Reads `Sums` on the thread that makes it; `spent` gets line, ns and number of what has one."""

    def __init__(self, spent: Callable[[Line, int, int], None]) -> None:
        self._spent = spent
        self._parts = NestedDurations()  # of compilations
        self._gc_ns = self._compile_ns = self._collective_ns = self._gc_since_ns = 0
        self._collected: deque[Stamp] = deque(maxlen=_MOST_MARKS)
        self._on_collection = [_stamping(phase, self._collected) for phase in ("start", "stop")]
        self._queued_sum_ns, self._off_cpu_ns = 0, -_NOTABLE_NS  # the time off the CPU at the last reading
        self._thread = threading.get_ident()
        self._queue: int | None = None
        with ignoring(OSError):
            self._queue = moved(os.open("/proc/thread-self/schedstat", os.O_RDONLY))
        gc.callbacks.extend(self._on_collection)
        self._restore = [self._leave]

    def _leave(self) -> None:
        for callback in self._on_collection:
            with ignoring(ValueError):  # the program cleared them
                gc.callbacks.remove(callback)
        with ignoring(OSError):  # the program closed it, and may have another file of this number
            if os.readlink(f"/proc/self/fd/{self._queue}").endswith("/schedstat"):
                os.close(self._queue or 0)
        self._queue = None

    def read(self) -> Sums:
        while self._collected:
            phase, ns, (code, line) = self._collected.popleft()
            begun_ns, self._gc_since_ns = self._gc_since_ns, ns if phase == "start" else 0
            if begun_ns and code:
                self._gc_ns += ns - begun_ns
                if ns - begun_ns >= _LONG_NS and not _is_library(code.co_filename):
                    self._spent(("gc", code.co_name, code.co_filename, line), ns - begun_ns, 1)
        cpu = time.thread_time_ns()
        others, off_cpu_ns = time.process_time_ns() - cpu, time.perf_counter_ns() - cpu
        if off_cpu_ns > self._off_cpu_ns + _NOTABLE_NS:
            self._queued_sum_ns, self._off_cpu_ns = self._queued_ns(), off_cpu_ns
        return self._collective_ns, self._gc_ns, self._compile_ns, cpu, self._queued_sum_ns, others

    def _queued_ns(self) -> int:
        """The second field of `schedstat`; Linux, Documentation/scheduler/sched-stats.rst."""
        if self._queue is None:
            return 0
        with ignoring(OSError, ValueError, IndexError):
            return int(os.pread(self._queue, 64, 0).split()[1])
        self._queue = None  # the program closed it, and may have another file of this number
        return 0

    def _is_elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    # -- compilation and collectives

    def follow_torch(self) -> None:
        """Torch has been imported."""
        self._restore += around_compilations(self._compiling)
        with ignoring(Exception):  # a build without torch.distributed
            from torch._C import _distributed_c10d as c10d

            work: Any = c10d.Work
            self._restore.append(replace(work, "wait", self._waited(work.wait)))

    @contextmanager
    def _compiling(self, *_: object) -> Iterator[None]:
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add_compilation(sys._getframe(1), time.perf_counter_ns() - begun)

    def add_compilation(self, frame: FrameType | None, spent_ns: int, count: int = 1) -> None:
        """A part of a compilation has ended; those inside it, which ended before, were added."""
        if self._is_elsewhere():
            return
        own_ns = round(self._parts.own(time.perf_counter_ns(), spent_ns))
        self._compile_ns += own_ns
        self._spent(("compile", *_place(_own_frame(frame))), own_ns, count)

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere():
                return original(*args, **kwargs)
            begun = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._collective_ns += time.perf_counter_ns() - begun

        return wait


def _stamping(phase: str, stamps: deque[Stamp]) -> Callable[..., object]:
    """A callback of `gc` that appends phase and time, and as a collection stops what this thread executes.

    It has no frame of Python's: in the first one after it Python handles signals, and drops what is raised
    in a callback. Without one `sys._getframe` shows memory that others use where Python 3.11 collects as it
    makes a generator; and before 3.11.5 a collection inside `sys._current_frames` must not call it again.
    """
    calls: Any = time.perf_counter_ns, threading.get_ident, sys._current_frames
    times, threads, frames_of = (starmap(call, repeat(())) for call in calls)
    is_safe, own = not (3, 11) <= sys.version_info < (3, 11, 5), threading.get_ident()
    here, elsewhere = {own: own} if is_safe else {}, SimpleNamespace(f_code=None, f_lineno=0)
    frames: Any = map(dict.get, frames_of, map(here.get, threads), repeat(elsewhere))
    lines = map(attrgetter("f_code", "f_lineno"), frames) if phase == "stop" else repeat((None, 0))
    # Its attribute of this name is the next one; `getattr` gets what a collection is about as a default.
    each: Any = type(phase, (map,), {phase: property(next)})
    return partial(getattr, each(stamps.append, zip(repeat(phase), times, lines)))


def _own_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the program, none of a library."""
    callers = user_frames(frame, _DEEPEST)
    return next((one for one in callers if not _is_library(one.f_code.co_filename)), None)


def _is_library(file: str) -> bool:
    return is_internal(file) or file.startswith(LIBRARIES)


def _place(frame: FrameType | None) -> tuple[str, str, int]:
    """Function, file and line."""
    return (frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno) if frame else ("", "", 0)


def works_on_device() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def _captures() -> bool:
    """Whether this thread captures a CUDA graph, which a query of an event would end with an error."""
    return bool(sys.modules["torch"].cuda.is_current_stream_capturing())


class DeviceClock:
    """Asks the device, by PyTorch's functions for NVML, which never wait for it."""

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns, self._after_ns = begun_ns, 0

    def read_if_due(self) -> tuple[float, ...] | None:
        """A row of `watch_format.DEVICE`: once a second, later after each 300th of the run so far."""
        since_ns = time.perf_counter_ns() - self._begun_ns
        if since_ns < self._after_ns or not works_on_device():
            return None
        self._after_ns = since_ns + max(_EVERY_NS, since_ns // _EACH)
        with ignoring(Exception):  # no library for it, or a device that does not say
            cuda: Any = sys.modules["torch"].cuda
            device, nvml = cuda.current_device(), sys.modules["pynvml"]
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(cuda._get_pynvml_handler(device))
            power_w, retries = 1e-3 * cuda.power_draw(device), cuda.memory_stats(device)["num_alloc_retries"]
            return since_ns, cuda.clock_rate(device), power_w, cuda.temperature(device), reasons, retries
        self._after_ns = 2**63  # never again
        return None


class DeviceEvents:
    """Times stages by events in the queue of the device, which are read once it has passed them."""

    def __init__(self) -> None:
        self._free: list[Any] = []
        self._marks: list[Mark] = []
        self._works = True

    def mark(self, begins: int | None) -> None:
        """The device comes to a stage, or to the end of one."""
        if not (self._works and works_on_device()):
            return
        cuda: Any = sys.modules["torch"].cuda
        if len(self._marks) >= _MOST_MARKS:  # no step ends, as where no optimizer of torch steps
            self._free += [event for _, event in self.taken()]
        with ignoring(Exception, then=self._stop):  # the program meets what is wrong with the device itself
            if not _captures():
                event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
                event.record()
                self._marks.append((begins, event))

    def _stop(self, _: Exception) -> None:
        self._works = False

    def taken(self) -> list[Mark]:
        """The marks since the last call."""
        marks, self._marks = self._marks, []
        return marks

    def stages_ms(self, marks: Sequence[Mark]) -> tuple[float, ...] | None:
        """Time of each stage; None before the device has passed the marks."""
        times = [0.0] * len(OF_DEVICE)
        with ignoring(Exception, then=self._stop):  # events of several devices
            if marks and (_captures() or not marks[-1][1].query()):
                return None
            for (begins, begun), (_, ended) in pairwise(marks):
                if begins is not None:
                    times[begins] += begun.elapsed_time(ended)
            self._free += [event for _, event in marks]
        return tuple(times)


class StepLog(ActivityLog):
    """Counts events into steps and calls `on_step(vector)`, with fields as in `watch_format.FIELDS`."""

    def __init__(
        self,
        on_step: Callable[[Vector], None],
        on_counted: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.clocks, self.device = StepClocks(self._note_at), DeviceClock(self.begun_ns)
        self.detector, self.events = StepDetector(), DeviceEvents()
        self._marks: list[Mark] = []  # of the step that runs
        self._late: deque[tuple[Vector, list[Mark]]] = deque()  # steps that the device may not have passed
        self.places: dict[Line, dict[str, Any]] = {}  # with fields as in `read.watched_run.WatchedPlace`
        self.steps = 0
        self.before_backward: Callable[[], None] = lambda: None  # called where no hook of torch is running
        self._on_step, self._on_counted, self._on_failure = on_step, on_counted, on_failure
        self._spent = [0] * len(_PARTS)
        self._began_ns: int | None = None  # the step that runs; None before the first has ended
        self._before = self.clocks.read()
        self._backward_ns = 0

    def note(self, method: Callable[[Any], object], argument: Any) -> None:
        """As the shares' log, with the clocks where a step may end."""
        if method == self.begin_backward:
            self.before_backward()
        if (name := getattr(method, "__name__", "")) in _BEGINS:
            self.events.mark(_BEGINS[name])
        if method == self.end_step:
            argument = argument, self.clocks.read(), self.events.taken()
        super().note(method, argument)

    @contextmanager
    def excluding(self) -> Iterator[None]:
        """The time inside is the recorder's, and what the clocks count then."""
        begun = self.clocks.read()
        with super().excluding():
            yield
        own = (after - before for after, before in zip(self.clocks.read(), begun, strict=True))
        self._before = tuple(map(sum, zip(self._before, own, strict=True)))

    def count_noted(self) -> None:
        """Count what was noted, in no step's time; the program goes on, whatever fails."""
        with ignoring(Exception, then=self._on_failure), self.excluding():
            super().count_noted()
            self._on_counted()

    def spent(self, activity: Activity, spent_ns: int) -> None:
        """An activity has ended."""
        self._add(activity, spent_ns, 1)

    def begin_backward(self, _: object = None) -> None:
        super().begin_backward()
        self._backward_ns = self.now()

    def end_backward(self, _: object = None) -> None:
        super().end_backward()
        if self._open and self._open[-1].kind == "optimizer":
            # In a closure, as Lightning gives one to optimizers: what it runs is no part of the update.
            self._since[-1] = self.now()
            self._spent[BACKWARD] += self._since[-1] - self._backward_ns

    def prepared(self, activity: Activity, spent_ns: int, loading_ns: int) -> None:
        """An activity begins; what it was prepared for is no part of a step if it is none itself."""
        if _PART_OF_STAGE.get(activity.stage) == EVALUATION:
            self._add(activity, spent_ns, 0)
        else:
            self._spent[INPUT] += loading_ns

    def _add(self, activity: Activity, spent_ns: int, count: int) -> None:
        part = _PART_OF_KIND.get(activity.kind, _PART_OF_STAGE.get(activity.stage))
        if part is not None and self._began_ns is not None:
            self._spent[part] += spent_ns
            if kind := _KINDS.get(activity.stage):
                self._add_at(((kind, activity.function, activity.file, activity.line), spent_ns, count))

    def _note_at(self, *spent: Any) -> None:
        self._noted.append((self._add_at, spent, 0))  # which asks for no time

    def _add_at(self, spent: tuple[Line, int, int]) -> None:
        line, spent_ns, count = spent
        kind, function, file, number = line
        most = _MOST_PLACES // 2 if kind == "gc" else _MOST_PLACES  # collections begin at any line
        if self._began_ns is None or (line not in self.places and len(self.places) >= most):
            return
        about = {"kind": kind, "function": function, "file": str(Path(file).absolute()), "line": number}
        place = self.places.setdefault(line, {**about, "count": 0, "total_ns": 0})
        place["count"] += count
        place["total_ns"] += spent_ns

    def end_step(self, ended: Any) -> None:
        """An optimizer has stepped; the clocks then, and the events until then."""
        optimizer, sums, marks = ended
        super().end_step(optimizer)
        self._marks += marks
        if self.detector.advance(optimizer):
            self._end_now(sums)

    def end_jax_step(self) -> None:
        """A compiled function of the program has returned that ends a step."""
        super().note(self._end_now, self.clocks.read())

    @contextmanager
    def library_call(self, *, saves: bool) -> Iterator[None]:
        """A JAX program, inside, asks a library for a batch or saves a checkpoint."""
        begun = self.now()
        try:
            yield
        finally:
            spent_ns = self.now() - begun
            frame = _own_frame(sys._getframe(1)) if saves else None
            saving = Activity("saving", *_place(frame)) if saves else None
            super().note(self._library_called, (saving, spent_ns))

    def _library_called(self, call: tuple[Activity | None, int]) -> None:
        saving, spent_ns = call
        if saving:
            self._add(saving, spent_ns, 1)
        elif not self.has_trained:  # else the hooks of torch count it
            self._spent[INPUT] += spent_ns

    def _end_now(self, sums: Sums) -> None:
        now = self.now()
        began, self._began_ns = self._began_ns, now
        if began is not None:
            self._late.append((self._vector(began, now, sums), self._marks))
            self.steps += 1
        self._before, self._spent, self._marks = sums, [0] * len(_PARTS), []
        self.tell_known(_MOST_LATE)

    def tell_known(self, most_late: int) -> None:
        """Hand out the steps that the device has passed, and others if they are more."""
        while self._late:
            vector, marks = self._late[0]
            stages = self.events.stages_ms(marks)
            if stages is None and len(self._late) <= most_late:
                return
            self._late.popleft()
            self._on_step((*vector, *(stages or [0.0] * len(OF_DEVICE))))

    def _vector(self, began: int, now: int, sums: Sums) -> Vector:
        times = (after - before for after, before in zip(sums, self._before, strict=True))
        ms = (max(spent, 0) * _MS for spent in (*self._spent, *times))
        # Before its end by its own time: samples of lines are on the clock with the recorder's.
        return self.steps, began + self.excluded_ns - self.begun_ns, now - began, *ms
