"""Which side of the launch an event is on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.trace import Trace


def on_host(trace: Trace) -> NDArray[np.bool_]:
    """Events on the CPU's tracks, bool, shape (events,).

    A track's kind does not tell: collectives have tracks of kind communication on either side.
    """
    host: NDArray[np.bool_] = (trace["tracks"]["device"] < 0)[trace.events["track"]]
    return host


def device_work(trace: Trace) -> NDArray[np.bool_]:
    """Kernels, copies, memsets and collectives that run on a device, bool, shape (events,)."""
    work: NDArray[np.bool_] = trace.events.text("category").mask(*DEVICE_WORK) & ~on_host(trace)
    return work
