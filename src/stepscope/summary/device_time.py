"""What each device does in a step: computing, communicating, idling."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.device.idle import cause_names, copy_times, working_devices
from stepscope.annotate.links.launches import device_work
from stepscope.arrays import Mask
from stepscope.summary.facts import Device
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table

_MS = 1e-6


def devices_of(selected: SelectedSteps) -> list[Device]:
    """The devices that work in the windows of the steps."""
    windows = Intervals(selected.steps["window_start_ns"], selected.steps["window_end_ns"])
    active = working_devices(selected.trace, selected.rank, windows)
    idle = selected.rows_of(selected.trace["idle"])
    return [_device(selected, idle, device) for device in active]


def _device(selected: SelectedSteps, idle: Table, device: int) -> Device:
    here = idle["device"] == device
    length = (idle["end_ns"] - idle["start_ns"]) * _MS / selected.count
    causes = {
        cause: float(length[here & (idle["cause"] == code)].sum())
        for code, cause in enumerate(cause_names(selected.trace))
    }
    window = float(sum(end - start for start, end in selected.windows) * _MS / selected.count)
    communication = _communication_ms(selected, device)
    return Device(
        device=device,
        name=str(selected.trace.metadata.device(device).get("name", "")),
        window_ms=window,
        computing_ms=window - sum(causes.values()),
        copying_ms=_copying_ms(selected, device),
        idle_ms=causes,
        communication_ms=communication,
        overlapped_ms=max(0.0, communication - causes["communication"]),
    )


def _communication_ms(selected: SelectedSteps, device: int) -> float:
    """Time in which any communication runs on the device, within the steps' windows."""
    events = selected.trace.events
    rows = _here(selected, device) & events.text("category").mask("communication")
    start = events["start_ns"][rows]
    return _inside_ms(selected, Intervals(start, start + events["duration_ns"][rows]))


def _copying_ms(selected: SelectedSteps, device: int) -> float:
    """Time in which the device only copies or fills memory, within the steps' windows."""
    work = np.flatnonzero(_here(selected, device) & device_work(selected.trace))
    return _inside_ms(selected, copy_times(selected.trace, work))


def _here(selected: SelectedSteps, device: int) -> Mask:
    tracks = selected.trace["tracks"]
    here: Mask = (tracks["device"] == device) & (tracks["rank"] == selected.rank)
    return here[selected.trace.events["track"]]


def _inside_ms(selected: SelectedSteps, time: Intervals) -> float:
    """A time within the steps' windows, a mean per step."""
    return sum(time.clip(*span).total() for span in selected.windows) * _MS / selected.count
