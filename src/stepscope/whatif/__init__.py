"""What would a fix gain? Changes of the dependency graph, one file each, and their prediction."""

from __future__ import annotations

from stepscope.whatif.change import Change, Request, parse_request
from stepscope.whatif.changes import find_changes
from stepscope.whatif.prediction import Prediction, predict

CHANGES: dict[str, Change] = find_changes()
"""Every change by name."""

__all__ = ["CHANGES", "Change", "Prediction", "Request", "parse_request", "predict"]
