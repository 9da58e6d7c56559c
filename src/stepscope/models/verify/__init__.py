"""Predicted against measured: a script with a change and without it, in processes of their own."""

from stepscope.models.verify.comparison import MeasuredRuns, TrialComparison
from stepscope.models.verify.verify import TrialPlan, verify_change

__all__ = ["MeasuredRuns", "TrialComparison", "TrialPlan", "verify_change"]
