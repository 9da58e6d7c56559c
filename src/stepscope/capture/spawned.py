"""Processes that `torch.multiprocessing.spawn` starts to train: each is recorded, as by torchrun.

A child gets the function that it is to run by unpickling it. What it unpickles is ours: it begins
to watch, and is replaced by the function, so that nothing of it is on the child's stack.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

from stepscope.capture.import_hooks import AfterImport
from stepscope.capture.manifest import Run
from stepscope.capture.options import RecordOptions
from stepscope.capture.output_path import Rank, target_path
from stepscope.capture.patch import replace
from stepscope.capture.run_shares.run_clock import RunClock
from stepscope.capture.session import Ending, Session

_MODULES = ("torch.multiprocessing", "torch.multiprocessing.spawn")
_BY_PICKLE = ("spawn", "forkserver")
_sessions: list[Session] = []  # multiprocessing.util refers to them weakly


@dataclass(frozen=True)
class ChildPlan:
    """How to record the children of a run; the fields are the arguments of `stepscope run`."""

    command: list[str]
    name: str
    options: RecordOptions
    output: str | None
    overwrite: bool

    def path(self, rank: Rank) -> Path:
        """The capture of a child."""
        return target_path(self.output, self.name, rank)


@dataclass
class Spawning:
    """Watches the start of children that train.

    Attributes:
        plan: how to record them.
        paths: the captures that they may write, with the version of each before the start.
    """

    plan: ChildPlan
    paths: dict[Path, int] = field(default_factory=dict)

    def install(self) -> None:
        """Replace `start_processes`; torch.multiprocessing must have been imported."""
        original = getattr(sys.modules[_MODULES[1]], "start_processes", None)
        if original is None:
            return

        @functools.wraps(original)
        def start_processes(*words: Any, **named: Any) -> Any:
            with suppress(Exception):  # what cannot be watched runs all the same
                call = inspect.signature(original).bind(*words, **named)
                words, named = self._watched(call)
            return original(*words, **named)

        for name in _MODULES:
            if getattr(sys.modules[name], "start_processes", None) is original:
                replace(sys.modules[name], "start_processes", start_processes)

    def captures(self) -> list[Path]:
        """The captures that children have written."""
        return [path for path, before in self.paths.items() if _version(path) not in (0, before)]

    def _watched(self, call: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `start_processes`, with a function that is recorded."""
        call.apply_defaults()
        given = call.arguments
        if given["start_method"] in _BY_PICKLE:
            paths = [self.plan.path(Rank(n, given["nprocs"])) for n in range(given["nprocs"])]
            self.paths |= {path: _version(path) for path in paths}
            given["fn"] = _Watched(given["fn"], self.plan, given["nprocs"])
        return call.args, call.kwargs


class _Watched:
    """A function; whoever unpickles it gets the function and is recorded from then on."""

    def __init__(self, function: Callable[..., object], plan: ChildPlan, count: int) -> None:
        self._function, self._plan, self._count = function, plan, count
        self._started = 0

    def __reduce__(self) -> tuple[Any, ...]:
        rank = Rank(self._started % self._count, self._count)
        self._started += 1
        return begin_in_child, (self._plan, rank, self._function)


def begin_in_child(
    plan: ChildPlan, rank: Rank, function: Callable[..., object]
) -> Callable[..., object]:
    """Watch this process, and give back the function that it is to run.

    Args:
        plan: how to record.
        rank: the number of the process, among those that were started together.
        function: what the process is to run.
    """
    with suppress(Exception):  # the program runs in any case
        run = Run(plan.command, plan.options, rank=rank)
        clock = RunClock(plan.options.step_every)
        session = Session(run, plan.path(rank), plan.overwrite, clock)
        _sessions.append(session)
        AfterImport("torch", session.attach).install()
        _finish_at_exit(session)
        util.register_after_fork(session, _finish_at_exit)  # a fork server's child forgets what
        # is to be done at its exit while it is set up
    return function


def _finish_at_exit(session: Session) -> None:
    util.Finalize(None, _finish, args=(session,), exitpriority=0)


def _finish(session: Session) -> None:
    with suppress(Exception):
        session.finish(Ending(), only_with_steps=True)


def _version(path: Path) -> int:
    """Differs once the file was written; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
