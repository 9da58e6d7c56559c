"""Batch sizes: find them in the source, measure a few, predict others, break a step down."""

from stepscope.models.batch_size.entry import open_entry
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.profile_session import Session
from stepscope.models.batch_size.site import edit_site
from stepscope.models.batch_size.sweep import QUICK, Plan
from stepscope.models.batch_size.worker_process import Cancelled

__all__ = ["QUICK", "Cancelled", "Plan", "Result", "Session", "edit_site", "find_site", "open_entry"]
