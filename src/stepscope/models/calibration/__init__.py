"""Benchmarks of single operators on this machine or its device, for what-ifs of their traces."""

from stepscope.models.calibration.calibration import (
    Calibration,
    Machine,
    ScriptOperators,
    calibrate,
    find_calibration,
    find_operators,
    kept_calibrations,
)
from stepscope.models.calibration.device_calibration import (
    DeviceCalibration,
    calibrate_device,
    find_device_calibration,
)

__all__ = [
    "Calibration",
    "DeviceCalibration",
    "Machine",
    "ScriptOperators",
    "calibrate",
    "calibrate_device",
    "find_calibration",
    "find_device_calibration",
    "find_operators",
    "kept_calibrations",
]
