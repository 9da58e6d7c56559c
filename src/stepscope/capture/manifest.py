"""manifest.json: who recorded what, and how it ended."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.capture.archive import FORMAT, VERSION
from stepscope.capture.frameworks import describe_framework
from stepscope.capture.options import Options
from stepscope.capture.target import Rank
from stepscope.version import __version__


@dataclass(frozen=True)
class Run:
    """What is known before anything is recorded."""

    command: Sequence[str]
    options: Options
    cwd: str = field(default_factory=os.getcwd)
    rank: Rank = field(default_factory=Rank.from_environment)
    created_unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        outcome: complete, ended_early, raised, interrupted or no_steps.
        message: one sentence on what happened.
        steps_seen: training steps that ended while stepscope was watching.
        steps_recorded: those that are in the trace, complete, from 0.
        step_ends_after: the optimizer call that ends a step.
        step_is: what a step is, in words, where no training step was found.
        warnings: what a reader of the capture should know.
        loaders: of each data loader in use its workers, pin_memory, prefetch_factor.
    """

    outcome: str
    message: str
    steps_seen: int = 0
    steps_recorded: Sequence[int] = ()
    step_ends_after: str | None = None
    step_is: str | None = None
    warnings: Sequence[str] = ()
    loaders: Sequence[dict[str, Any]] = ()


def build_manifest(run: Run, result: Result, framework: str | None = None) -> dict[str, Any]:
    """The content of manifest.json; `framework` is what was recorded, by default what is loaded."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "stepscope": __version__,
        "created_unix_ns": run.created_unix_ns,
        "command": list(run.command),
        "cwd": run.cwd,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": _usable_cpus(),
        **describe_framework(framework),
        **asdict(run.rank),
        **asdict(result),
        "options": asdict(run.options),
    }


def _usable_cpus() -> int | None:
    """The cores that this process may run on, which a container or a scheduler may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
