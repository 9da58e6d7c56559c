"""Measure what a machine's calibration lacks, in a process of its own: this one loads no torch."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.calibration.calibration import (
    Calibration,
    Machine,
    find_calibration,
    keep_calibration,
)
from stepscope.calibration.operators import Operator, find_operators
from stepscope.errors import ChangeError
from stepscope.trace.trace import Trace

_STAGES = ("forward", "loss", "backward")
_WORTH = 0.0005  # of the time of forward and backward


def calibrate(trace: Trace, *, afresh: bool = False) -> Calibration:
    """The machine's calibration with all that predictions for this trace need.

    Args:
        trace: of a CPU, with shapes; recorded on this machine.
        afresh: whether to measure what is known already.

    Raises:
        ChangeError: if torch cannot be loaded, or is of another version than the trace's.
    """
    known = None if afresh else find_calibration(trace.metadata)
    wanted = _worth_measuring(trace)
    lacking = [one for one in wanted if known is None or one.signature not in known.operators]
    if known is not None and not lacking:
        return known
    calibration = _measured(Machine.of(trace.metadata), known, lacking)
    keep_calibration(calibration)
    return calibration


def _worth_measuring(trace: Trace) -> list[Operator]:
    """Operators in FP32 of forward and backward that take a share of its time worth knowing."""
    events = trace.events
    found = find_operators(trace, events.text("stage").mask(*_STAGES))
    length = events["duration_ns"][found.rows]
    times: dict[str, float] = {}
    calls: dict[str, Operator] = {}
    for call, time in zip(found.calls, length.tolist(), strict=True):
        if call is not None and call.floats:
            times[call.signature] = times.get(call.signature, 0) + time
            calls[call.signature] = call
    least = _WORTH * float(np.sum(length))
    return [calls[signature] for signature, time in times.items() if time >= least]


def _measured(
    machine: Machine, known: Calibration | None, operators: Sequence[Operator]
) -> Calibration:
    request = {
        "threads": machine.threads,
        "operators": [one.signature for one in operators],
        "machine": known is None,
    }
    facts = _in_child(request)
    if facts["torch"] != machine.torch:
        raise ChangeError(
            f"expected torch {machine.torch}, which made the trace, to calibrate; found "
            f"{facts['torch']} in {sys.executable}; use the training script's own Python"
        )
    date = datetime.date.today().isoformat()
    base = known or Calibration(
        machine, date, casts=facts["casts"], copies=facts["copies"],
        optimizers=facts["optimizers"], loading=facts["loading"], reducing=facts["reducing"],
        sharding=facts["sharding"],
    )  # fmt: skip
    return replace(base, operators={**base.operators, **facts["operators"]})


def _in_child(request: dict[str, object]) -> dict[str, Any]:
    command = [sys.executable, "-m", "stepscope.calibration.measure"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(request["threads"])}
    done = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChangeError(f"could not calibrate with {sys.executable}: {last}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts
