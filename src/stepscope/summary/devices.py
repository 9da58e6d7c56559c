"""What each device does in a step: computing, communicating, idling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.annotate.tracks import device_work
from stepscope.summary.part import Part
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES
from stepscope.trace.table import Table

_MS = 1e-6


@dataclass(frozen=True)
class Device:
    """A device's mean time a step, ms: computing, only communicating, idle by cause."""

    device: int
    name: str
    window_ms: float
    computing_ms: float
    idle_ms: dict[str, float]
    communication_ms: float
    overlapped_ms: float


def devices_of(part: Part) -> list[Device]:
    """The devices that the steps use."""
    events, tracks = part.trace.events, part.trace["tracks"]
    used = tracks["device"][events["track"][part.chosen_events & device_work(part.trace)]]
    idle = part.rows_of(part.trace["idle"])
    return [_device(part, idle, int(device)) for device in np.unique(used)]


def _device(part: Part, idle: Table, device: int) -> Device:
    here = idle["device"] == device
    length = (idle["end_ns"] - idle["start_ns"]) * _MS / part.count
    causes = {
        cause: float(length[here & (idle["cause"] == code)].sum())
        for code, cause in enumerate(IDLE_CAUSES)
    }
    window = float(sum(end - start for start, end in part.windows) * _MS / part.count)
    spoken = _communication_ms(part, device)
    return Device(
        device=device,
        name=str(part.trace.metadata.device(device).get("name", "")),
        window_ms=window,
        computing_ms=window - sum(causes.values()),
        idle_ms=causes,
        communication_ms=spoken,
        overlapped_ms=max(0.0, spoken - causes["communication"]),
    )


def _communication_ms(part: Part, device: int) -> float:
    """Time in which any communication runs on the device, within the steps' windows."""
    events, tracks = part.trace.events, part.trace["tracks"]
    here = (tracks["device"] == device) & (tracks["rank"] == part.rank)
    rows = here[events["track"]] & events.text("category").mask("communication")
    start = events["start_ns"][rows]
    spoken = Intervals(start, start + events["duration_ns"][rows])
    return sum(spoken.clip(*span).total() for span in part.windows) * _MS / part.count
