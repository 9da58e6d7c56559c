"""What would a fix gain? Changes of the dependency graph, one file each, and their prediction."""

from stepscope.models.whatif.change import Change, Request, parse_request
from stepscope.models.whatif.changes import NamedChanges, load_changes
from stepscope.models.whatif.prediction import Prediction, predict

CHANGES = NamedChanges()
"""Every change by name."""

__all__ = ["CHANGES", "Change", "Prediction", "Request", "load_changes", "parse_request", "predict"]
