"""Which side of the launch an event is on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import is_step
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.trace import Trace


def on_host(trace: Trace) -> NDArray[np.bool_]:
    """Events on the CPU's tracks, bool, shape (events,).

    A track's kind does not tell: collectives have tracks of kind communication on either side.
    """
    host: NDArray[np.bool_] = (trace["tracks"]["device"] < 0)[trace.events["track"]]
    return host


def marked_on_devices(trace: Trace) -> bool:
    """Whether steps are marked, and on devices only, as in a TPU's profile without its host."""
    marks = trace.events.text("name").where(is_step)
    return bool(marks.any() and not on_host(trace)[marks].any())


def device_work(trace: Trace) -> NDArray[np.bool_]:
    """Kernels, copies, memsets and collectives that run on a device, bool, shape (events,)."""
    work: NDArray[np.bool_] = trace.events.text("category").mask(*DEVICE_WORK) & ~on_host(trace)
    return work
