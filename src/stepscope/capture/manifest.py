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
from stepscope.capture.options import RecordOptions
from stepscope.capture.output_path import Rank
from stepscope.version import __version__


@dataclass(frozen=True)
class Run:
    """The run, as known before anything is recorded."""

    command: Sequence[str]
    options: RecordOptions
    cwd: str = field(default_factory=os.getcwd)
    rank: Rank = field(default_factory=Rank.from_environment)
    created_unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True)
class Result:
    """The outcome of a recording.

    Attributes:
        outcome: complete, ended_early, raised, interrupted or no_steps.
        message: one sentence on what happened.
        steps_seen: training steps that ended while stepscope watched.
        steps_recorded: steps that are complete in the trace, counted from 0.
        step_ends_after: the optimizer call that ends a step.
        step_is: what a step is, in words, where no optimizer ends it.
        warnings: for the reader of the capture.
        loaders: workers, pin_memory, prefetch_factor of each data loader in use.
        created: the calls that create optimizers, data loaders and DDP models.
        updated_modules: modules by the optimizer that holds their parameters, see there.
        recorded_steps: the same steps by the clocks of the process; None where not measured.
        unrecorded_steps: times of the steps after the recording; None where not measured.
        run_shares: how long the run trained, evaluated and so on; None where not measured.
    """

    outcome: str
    message: str
    steps_seen: int = 0
    steps_recorded: Sequence[int] = ()
    step_ends_after: str | None = None
    step_is: str | None = None
    warnings: Sequence[str] = ()
    loaders: Sequence[dict[str, Any]] = ()
    created: Sequence[dict[str, Any]] = ()
    updated_modules: dict[str, list[str]] = field(default_factory=dict)
    recorded_steps: dict[str, Any] | None = None
    unrecorded_steps: dict[str, Any] | None = None
    run_shares: dict[str, Any] | None = None


def build_manifest(run: Run, result: Result, framework: str | None = None) -> dict[str, Any]:
    """The content of manifest.json; `framework` by default is the loaded one."""
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
    """The cores this process may run on; a container or scheduler may limit them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
