"""Benchmark operators that a calibration lacks, in a child process (this one loads no torch)."""

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
from stepscope.calibration.script_operators import Operator, find_operators
from stepscope.errors import ChangeError
from stepscope.trace.trace import Trace

_STAGES = ("forward", "loss", "backward")
_MIN_SHARE = 0.0005  # of the time of forward and backward


def calibrate(trace: Trace, *, afresh: bool = False) -> Calibration:
    """The machine's calibration, with everything that predictions for this trace need.

    A calibration that other processes disturbed is measured again; the less disturbed one counts.

    Args:
        trace: a CPU trace with shapes, recorded on this machine.
        afresh: whether to measure known operators again.

    Raises:
        ChangeError: if torch cannot be loaded, or its version differs from the trace's.
    """
    kept = None if afresh else find_calibration(trace.metadata)
    known = None if kept is None or kept.is_disturbed else kept
    wanted = _worth_measuring(trace)
    missing = [call for call in wanted if known is None or call.signature not in known.operators]
    if known is not None and not missing:
        return known
    calibration = _measured(Machine.of(trace.metadata), known, missing)
    if known is None and kept is not None:
        calibration = _less_disturbed(kept, calibration)
    keep_calibration(calibration)
    return calibration


def _less_disturbed(before: Calibration, now: Calibration) -> Calibration:
    """The calibration that got more of a core, with all operators that were asked for now."""
    if now.core_share >= before.core_share:
        return now
    more = {one: times for one, times in now.operators.items() if one not in before.operators}
    share = now.core_share if more else before.core_share
    return replace(before, operators={**before.operators, **more}, core_share=share)


def _worth_measuring(trace: Trace) -> list[Operator]:
    """FP32 operators of forward and backward with a relevant share of the time."""
    events = trace.events
    found = find_operators(trace, events.text("stage").mask(*_STAGES))
    length = events["duration_ns"][found.rows]
    times: dict[str, float] = {}
    calls: dict[str, Operator] = {}
    for call, time in zip(found.calls, length.tolist(), strict=True):
        if call is not None and call.floats:
            times[call.signature] = times.get(call.signature, 0) + time
            calls[call.signature] = call
    least = _MIN_SHARE * float(np.sum(length))
    return [calls[signature] for signature, time in times.items() if time >= least]


def _measured(
    machine: Machine, known: Calibration | None, operators: Sequence[Operator]
) -> Calibration:
    request = {
        "threads": machine.threads,
        "operators": [call.signature for call in operators],
        "machine": known is None,
    }
    facts = _in_child(request)
    if facts["torch"] != machine.torch:
        raise ChangeError(
            f"the trace was recorded with torch {machine.torch}, but {sys.executable} has torch "
            f"{facts['torch']}; calibrate with the Python of the training script"
        )
    date = datetime.date.today().isoformat()
    base = known or Calibration(
        machine, date, casts=facts["casts"], copies=facts["copies"],
        optimizers=facts["optimizers"], loading=facts["loading"], reducing=facts["reducing"],
        sharding=facts["sharding"], sparse_gradients=facts["sparse_gradients"],
    )  # fmt: skip
    return replace(
        base,
        operators={**base.operators, **facts["operators"]},
        core_share=min(base.core_share, facts["core_share"]),
    )


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
