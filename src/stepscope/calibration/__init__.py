"""Benchmarks of single operators on this machine, for what-ifs of CPU traces."""

from __future__ import annotations

from stepscope.calibration.calibration import (
    Calibration,
    Machine,
    calibrate,
    find_calibration,
    kept_calibrations,
)
from stepscope.calibration.script_operators import ScriptOperators, find_operators

__all__ = [
    "Calibration",
    "Machine",
    "ScriptOperators",
    "calibrate",
    "find_calibration",
    "find_operators",
    "kept_calibrations",
]
