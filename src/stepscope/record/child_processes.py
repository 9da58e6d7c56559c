"""Processes that the program starts and that train: each is recorded on its own.

Until an optimizer steps in it, a child is only watched for that, and if none does it leaves no
file. A forked child is watched from the fork on. A child of the start methods `spawn` and
`forkserver` gets the arguments of its process by unpickling them: what it unpickles is ours, begins
to watch, and is replaced by the arguments, so that nothing of it is on the child's stack.
"""

import functools
import glob
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import context, util
from pathlib import Path
from traceback import walk_stack
from typing import Any

from stepscope.record import patch
from stepscope.record.capture_file import Identity, identity
from stepscope.record.manifest import Run
from stepscope.record.options import SUFFIX, Rank, RecordOptions, target_path
from stepscope.record.patch import AfterImport
from stepscope.record.run_shares.run_shares import RunClock
from stepscope.record.session import Ending, Session
from stepscope.record.unreplaced import os

_SPAWN = ("torch.multiprocessing", "torch.multiprocessing.spawn")
_NEVER_TRAIN = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_")
_MOST_FRAMES = 30  # searched for who forks; multiprocessing needs fewer than ten
_children: "list[Child]" = []  # multiprocessing.util refers to them weakly


@dataclass(frozen=True)
class ChildPlan:
    """How to record a child; the fields are the arguments of `stepscope run`, and which child."""

    command: list[str]
    name: str
    options: RecordOptions
    output: str | None
    overwrite: bool
    number: tuple[int, ...] = ()  # the child among those of its parent, after the parent's own number
    rank: Rank | None = None  # its rank, if the parent starts a known number of processes together

    def path(self, rank: Rank | None) -> Path:
        """The capture of a child; without a rank one named after its number."""
        path = target_path(self.output, self.name, rank or Rank())
        if rank is not None:
            return path
        number = ".".join(map(str, self.number))
        return path.with_name(f"{path.name.removesuffix(SUFFIX)}-process{number}{SUFFIX}")


class ChildProcesses:
    """Watches the start of processes; in a forked child it first calls `detach`."""

    def __init__(self, plan: ChildPlan, detach: Callable[[], object] = lambda: None) -> None:
        self._plan, self._detach = plan, detach
        self._started = 0
        self._together: tuple[int, int] | None = None  # started before, and how many there will be
        self._forked: ChildPlan | None = None
        self._is_alone = False  # whether one child has the run's own file
        self._before = self._versions()

    def install(self) -> None:
        for kind in (getattr(context, name, None) for name in ("SpawnProcess", "ForkServerProcess")):
            if kind is not None:
                patch.replace(kind, "_Popen", staticmethod(self._spawning(kind._Popen)))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_child=self._in_forked_child)
        AfterImport(_SPAWN[0], self._watch_groups).install()

    def captures(self) -> list[Path]:
        return sorted(path for path, now in self._versions().items() if now != self._before.get(path))

    def _versions(self) -> dict[Path, Identity | None]:
        """The captures that there are; none where the folder is gone or cannot be read."""
        with suppress(OSError):
            return {path: now for path in self._candidates() if (now := identity(path))}
        return {}

    def _candidates(self) -> Iterator[Path]:
        path = target_path(self._plan.output, self._plan.name, Rank())
        stem = path.name.removesuffix(SUFFIX)
        yield from path.parent.glob(f"{glob.escape(stem)}-process*{SUFFIX}")
        yield from path.with_name(stem).glob(f"rank*{SUFFIX}")
        if self._is_alone:
            yield path

    def _next(self) -> ChildPlan:
        """How to record the child that starts now."""
        self._started += 1
        rank = None
        if self._together:
            begun, count = self._together
            rank = Rank((self._started - begun - 1) % count, count)
        return replace(self._plan, number=(*self._plan.number, self._started), rank=rank)

    # -- start methods

    def _before_fork(self) -> None:
        self._forked = None
        with patch.ignoring(Exception):
            if not _never_trains():
                self._forked = self._next()

    def _in_forked_child(self) -> None:
        plan, self._forked = self._forked, None
        with patch.ignoring(Exception):
            self._detach()
            self._detach = lambda: None
            if plan is not None:
                self._plan, self._started, self._together = plan, 0, None
                Child(plan).watch()

    def _spawning(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Start a process whose arguments are ours while they are pickled."""

        @functools.wraps(start)
        def _Popen(process: Any) -> Any:
            given = vars(process).get("_args")
            target = getattr(vars(process).get("_target"), "__module__", None) or ""
            if type(given) is not tuple or target.startswith(_NEVER_TRAIN):
                return start(process)
            process._args = _Watched(self._next(), given)
            try:
                return start(process)
            finally:
                process._args = given

        return _Popen

    def _watch_groups(self) -> None:
        """Processes of `torch.multiprocessing.start_processes` are ranks of a known number."""
        original = getattr(sys.modules.get(_SPAWN[1]), "start_processes", None)
        if original is None:
            return

        @functools.wraps(original)
        def start_processes(*words: Any, **named: Any) -> Any:
            with self._starting(original, words, named):
                return original(*words, **named)

        for name in _SPAWN:
            if getattr(sys.modules[name], "start_processes", None) is original:
                patch.replace(sys.modules[name], "start_processes", start_processes)

    @contextmanager
    def _starting(self, original: Any, words: Any, named: Any) -> Iterator[None]:
        with patch.ignoring(Exception):  # what cannot be watched runs all the same
            call = inspect.signature(original).bind(*words, **named)
            call.apply_defaults()
            self._together = (self._started, call.arguments["nprocs"])
            if call.arguments["nprocs"] == 1:
                path = self._plan.path(Rank())
                self._before[path] = identity(path)
                self._is_alone = True
        try:
            yield
        finally:
            self._together = None


class _Watched:
    """Arguments of a process; whoever unpickles them gets them and is watched from then on."""

    def __init__(self, plan: ChildPlan, given: tuple[Any, ...]) -> None:
        self._plan, self._given = plan, given

    def __reduce__(self) -> tuple[Any, ...]:
        return begin_in_child, (self._plan, self._given)


def begin_in_child(plan: ChildPlan, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Watch this process and those that it starts, and give back the arguments of its target."""
    with patch.ignoring(Exception):  # the program runs in any case
        Child(plan).watch()
        ChildProcesses(plan).install()
    return given


class Child:
    """This process, which records itself once an optimizer has stepped."""

    def __init__(self, plan: ChildPlan) -> None:
        self._plan = plan
        self._clock = RunClock(plan.options.step_every)
        self._pid = os.getpid()
        self._watch: Any = None
        self._session: Session | None = None

    def watch(self) -> None:
        _children.append(self)
        AfterImport("torch", self._watch_optimizers).install()

    def _watch_optimizers(self) -> None:
        with patch.ignoring(Exception):  # the program's import goes on
            from stepscope.record.module_registry import profiler_runs
            from stepscope.record.optimizers import OptimizerWatch

            if os.getpid() == self._pid and not profiler_runs():
                self._watch = OptimizerWatch(self._stepped)

    def _stepped(self, optimizer: Any) -> None:
        if self._session is not None:
            return
        with patch.ignoring(Exception):
            self._watch.close()
            if os.getpid() == self._pid:
                self._begin(optimizer)

    def _begin(self, optimizer: Any) -> None:
        plan, known = self._plan, Rank.from_environment()
        rank = plan.rank or (known if known.world_size > 1 else None)
        run = Run(plan.command, plan.options, rank=rank or Rank())
        self._session = Session(run, plan.path(rank), plan.overwrite, self._clock)
        recorder = self._session.attach(only_training=True)
        recorder.has_stepped(optimizer)
        util.Finalize(None, self._finish, exitpriority=0)

    def _finish(self) -> None:
        with patch.ignoring(Exception):
            if self._session:
                self._session.finish(Ending(), only_with_steps=True)


def _never_trains() -> bool:
    """Whether who forks now starts a worker of a data loader, or a server of multiprocessing."""
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in walk_stack(sys._getframe()))
    return any(module.startswith(_NEVER_TRAIN) for module in islice(modules, _MOST_FRAMES))
