"""Benchmarks of single operators on this machine, for what-ifs of CPU traces."""

from stepscope.models.calibration.calibration import (
    Calibration,
    Machine,
    ScriptOperators,
    calibrate,
    find_calibration,
    find_operators,
    kept_calibrations,
)

__all__ = [
    "Calibration",
    "Machine",
    "ScriptOperators",
    "calibrate",
    "find_calibration",
    "find_operators",
    "kept_calibrations",
]
