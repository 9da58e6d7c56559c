"""Batch sizes: find them in the source, measure a few, predict others, break a step down."""

from stepscope.models.batch_size.breakdown import StepBreakdown
from stepscope.models.batch_size.entry import Entry, open_entry
from stepscope.models.batch_size.entry_profile import Profile, make_profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.profile_session import Session
from stepscope.models.batch_size.site import Edit, Site, edit_site
from stepscope.models.batch_size.sweep import QUICK, Plan
from stepscope.models.batch_size.worker_process import Cancelled

__all__ = [
    "QUICK",
    "Cancelled",
    "Edit",
    "Entry",
    "Plan",
    "Profile",
    "Result",
    "Session",
    "Site",
    "StepBreakdown",
    "edit_site",
    "find_site",
    "make_profile",
    "open_entry",
]
