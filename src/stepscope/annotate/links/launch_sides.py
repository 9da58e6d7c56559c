"""Which events run on the host and which on devices."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.range_names import is_step
from stepscope.arrays import Mask
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.sets import members
from stepscope.trace.trace import Trace


def on_host(trace: Trace) -> Mask:
    """Events on CPU tracks, bool, shape (events,).

    The kind of a track is not enough: communication tracks exist on both sides.
    """
    return members(trace.events["track"], trace["tracks"]["device"] < 0)


def shows_cpu(trace: Trace) -> bool:
    """Whether the trace shows what the CPU does: more than ranges and marks of steps."""
    work = trace.events.text("category").mask("cpu_op", "python", "runtime", "communication")
    return bool((work & on_host(trace)).any())


def marked_on_devices(trace: Trace) -> bool:
    """Whether steps are marked, and on devices only, as in a TPU's profile without its host."""
    host = on_host(trace)
    marks = trace.events.text("name").where(is_step)
    if not marks.any():
        iterating = np.unique(trace["iterations"]["track"])
        return bool(len(iterating)) and not host[np.isin(trace.events["track"], iterating)].any()
    return not bool(host[marks].any())


def device_work(trace: Trace) -> Mask:
    """Kernels, copies, memsets and collectives that run on a device, bool, shape (events,)."""
    work: Mask = trace.events.text("category").mask(*DEVICE_WORK) & ~on_host(trace)
    return work
