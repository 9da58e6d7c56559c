"""A device's calibration: times of single operators on it, in each precision.

It belongs to a device and a version of torch: all captures of these share it, and each adds the
operators that it has.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.facts.annotate.links.launches import device_work, launch_of
from stepscope.models.calibration.calibration import (
    STAGES,
    ScriptOperators,
    find_operators,
    heaviest_operators,
    in_child,
    path_about,
    read_calibration,
    require_torch,
    write_calibration,
)
from stepscope.trace.schema import COMPUTING
from stepscope.trace.trace import Metadata, Trace

PRECISIONS = ("fp32", "tf32", "half")  # of times of an operator
_SECONDS = 100.0  # of timing; with what starts and ends it two minutes
_LEAST_SHARE = 0.0002  # of device time that an operator must have to be timed; chosen
_VERSION = 2  # of the file's format: a file of another version has another key


@dataclass(frozen=True)
class DeviceCalibration:
    """Times of operators on a device, ns."""

    device: str  # its name
    torch: str  # the version
    date: str  # of the latest measurement, YYYY-MM-DD
    # by signature a time for each of `PRECISIONS`; None where the call is not possible
    operators: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """Its file; None without a cache."""
        return _path(self.device, self.torch)

    def ratio(self, signature: str, precision: str, before: str = "fp32") -> float | None:
        """Its time in one of `PRECISIONS` over that in another; None if it was not timed in both."""
        times = dict(zip(PRECISIONS, self.operators.get(signature, ()), strict=False))
        now, then = times.get(precision), times.get(before)
        return now / then if now and then else None

    def __str__(self) -> str:
        return f"calibration of {self.date} on {self.device}, torch {self.torch}"


def _path(device: str, torch: str) -> Path | None:
    return path_about(_VERSION, device, torch)


def find_device_calibration(metadata: Metadata) -> DeviceCalibration | None:
    """The calibration for traces of this device and software, or None."""
    return read_calibration(_path(_device_name(metadata), metadata.framework_version), DeviceCalibration)


def _device_name(metadata: Metadata) -> str:
    return next((str(device.get("name", "")) for device in metadata.devices), "")


def calibrate_device(trace: Trace, *, device: str = "cuda", afresh: bool = False) -> DeviceCalibration:
    """The calibration of a trace's device, with its operators, those with most device time first.

    Args:
        trace: with shapes, recorded on a device like the one here.
        device: where to time them, as torch names it.
        afresh: time operators again that were.

    Raises:
        ChangeError: if the device is another one than the trace's, or torch is.
    """
    name, version = _device_name(trace.metadata), trace.metadata.framework_version
    known = None if afresh else find_device_calibration(trace.metadata)
    before = dict(known.operators) if known else {}
    wanted = [text for text in wanted_operators(trace) if text not in before]
    if known and not wanted:
        return known
    facts = in_child("measure_device", {"device": device, "operators": wanted, "seconds": _SECONDS})
    if facts["name"] != name:
        raise ChangeError(
            f"the trace was recorded on {name or 'an unknown device'}, but this machine has "
            f"{facts['name'] or 'no GPU that torch can use'}; calibrate where the trace was recorded"
        )
    require_torch(version, facts["torch"])
    base = known or DeviceCalibration(name, version, "")
    today = datetime.date.today().isoformat()
    calibration = replace(base, date=today, operators={**before, **facts["operators"]})
    write_calibration(calibration.path, asdict(calibration))
    return calibration


def calibrated_share(trace: Trace, calibration: DeviceCalibration) -> float:
    """The share of device time of forward and backward whose operators were timed."""
    operators, time = _operators(trace)
    timed = [
        call is not None and calibration.ratio(call.signature, "half") is not None for call in operators.calls
    ]
    # What no operator launched, as compiled kernels, was not timed.
    within = trace.events.text("stage").mask(*STAGES) & trace.events.text("category").mask(*COMPUTING)
    whole = max(float(trace.events["duration_ns"][within].sum()), float(time.sum()), 1.0)
    return float(time[timed].sum() / whole)


def wanted_operators(trace: Trace) -> list[str]:
    """Signatures of operators of FP32 values, those with most device time first."""
    return heaviest_operators(*_operators(trace), _LEAST_SHARE)


def _operators(trace: Trace) -> tuple[ScriptOperators, Floats]:
    """The outermost operators of forward and backward, and the device time of each, ns."""
    events = trace.events
    operators = find_operators(trace, events.text("stage").mask(*STAGES))
    rows = np.flatnonzero(device_work(trace))
    caller = launch_of(trace)[rows]
    place = np.where(caller >= 0, np.append(operators.around, -1)[caller], -1)
    known = place >= 0
    time = np.bincount(place[known], events["duration_ns"][rows][known], len(operators.rows))
    return operators, time.astype(np.float64)
