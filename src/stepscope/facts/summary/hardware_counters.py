"""Hardware counters of devices, such as how busy SMs, tensor cores and memory are.

A counter event of Kineto has the values of a sample of the device's performance monitors that begins
then, and lasts until the next begins.

Source: Kineto, libkineto/src/CuptiPMSamplingProfiler.cpp and output_json.cpp (2026).
"""

from collections.abc import Iterator

import numpy as np

from stepscope.base.arrays import Floats, Times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.summary.facts import HardwareCounter
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals


def hardware_counters(selected: SelectedSteps) -> list[HardwareCounter]:
    """The counters of the devices in the selected steps, device by device."""
    return [*_counters(selected)] if len(selected.trace["counters"]) else []


def _counters(selected: SelectedSteps) -> Iterator[HardwareCounter]:
    trace = selected.trace
    table, tracks = trace["counters"], trace["tracks"]
    rank, device = (tracks[column][table["track"]] for column in ("rank", "device"))
    rows = np.flatnonzero((rank == selected.rank) & (device >= 0) & np.isfinite(table["value"]))
    names = table.text("series")
    for number, code in np.unique(np.stack([device[rows], names.codes[rows]], axis=1), axis=0).tolist():
        own = rows[(device[rows] == number) & (names.codes[rows] == code)]
        samples = table["time_ns"][own], table["value"][own]
        on_device = tracks["device"][trace.events["track"]] == number
        work = np.flatnonzero(device_work(trace) & on_device & selected.chosen_events)
        mean = _mean(*samples, Intervals(*selected.windows))
        if mean is not None:
            working = _mean(*samples, Intervals(*trace.events.spans(work)))
            yield HardwareCounter(number, names.values[code], mean, working)


def _mean(time: Times, value: Floats, parts: Intervals) -> float | None:
    """The mean of samples over the parts of time that they cover; None if that is nothing."""
    order = np.argsort(time, kind="stable")
    time, value = time[order].astype(np.int64), value[order]
    held = np.append(np.diff(time), time[-1] - time[-2] if len(time) > 1 else 0)
    covered = parts.clip(int(time[0]), int(time[-1] + held[-1]))
    before = np.append(0.0, np.cumsum(value * held))

    def until(moment: Times) -> Floats:
        at = np.maximum(np.searchsorted(time, moment, side="right") - 1, 0)
        return before[at] + value[at] * (moment - time[at])

    total = covered.total()
    return float((until(covered.ends) - until(covered.starts)).sum() / total) if total else None
