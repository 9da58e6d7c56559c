"""How much of a trace the steps found in it hold.

A recording may mark one step among others, or hold part of a long one: its marks then say little
about the trace, and means over such steps would hide most of it.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.links.launch_sides import device_work, on_host
from stepscope.annotate.links.launches import launched_before_recording
from stepscope.arrays import Rows, Times
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.trace import Trace

_WARNING = "steps_cover_little"
LITTLE = 0.25  # steps that hold less of the work do not stand for the trace


def covered_share(trace: Trace, step: Rows) -> float:
    """The share of the work that belongs to steps: of device time, else of time in operators.

    Args:
        trace: with launches.
        step: index of the step of each event, or -1, shape (events,).

    Returns:
        1 if there is no such work, or if it is not known to which step it belongs: compiled work
        that runs on the CPU after its call has returned.
    """
    events = trace.events
    work = device_work(trace) & ~launched_before_recording(trace)
    duration = events["duration_ns"]
    if not duration[work].any():
        if (on_host(trace) & (events["scope"] >= 0)).any():
            return 1.0
        work = on_host(trace) & events.text("category").mask("cpu_op", "runtime", "communication")
        duration = events["self_ns"]
    whole = int(duration[work].sum())
    covered = int(duration[work & (np.asarray(step) >= 0)].sum())
    return covered / whole if whole else 1.0


def warn_little(trace: Trace, lengths: Times, share: float) -> Trace:
    """The trace with a warning that the steps found do not stand for it.

    Args:
        trace: the trace.
        lengths: of the steps, ns.
        share: of the work that belongs to them.
    """
    steps = "the step found takes" if len(lengths) == 1 else f"the {len(lengths)} steps found take"
    message = (
        f"{steps} {milliseconds(lengths.sum())} and {'holds' if len(lengths) == 1 else 'hold'} "
        f"{share:.0%} of the trace's work, so the whole trace is shown as one step"
    )
    return trace.with_warnings([(_WARNING, message, 1)])


def coverage_note(trace: Trace, rank: int) -> str:
    """Why the whole recording of a rank is shown as one step; empty if it is not."""
    found = _messages(trace, rank, _WARNING)
    if not found and trace["steps"].text("evidence").mask("whole_trace").any():
        found = _messages(trace, rank, "steps_inferred")
    return next(iter(found), "")


def capture_notes(trace: Trace, rank: int) -> list[str]:
    """What the recorder warned of in the capture of a rank."""
    return _messages(trace, rank, "capture")


def _messages(trace: Trace, rank: int, code: str) -> list[str]:
    rows = trace["warnings"].rows()
    return [row["message"] for row in rows if (row["code"], row["rank"]) == (code, rank)]
