"""Predicted against measured: a script with a change and without it, in processes of their own."""

from __future__ import annotations

from stepscope.verify.comparison import Comparison, Measured
from stepscope.verify.trials import Script
from stepscope.verify.verify import Plan, verify_change

__all__ = ["Comparison", "Measured", "Plan", "Script", "verify_change"]
