"""What operators take alone on this machine: measured once, for what-ifs of CPU traces."""

from __future__ import annotations

from stepscope.calibration.calibrate import calibrate
from stepscope.calibration.calibration import (
    Calibration,
    Machine,
    find_calibration,
    kept_calibrations,
)
from stepscope.calibration.operators import Operators, find_operators

__all__ = [
    "Calibration",
    "Machine",
    "Operators",
    "calibrate",
    "find_calibration",
    "find_operators",
    "kept_calibrations",
]
