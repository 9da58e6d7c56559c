"""Batch sizes: find them in the source, measure a few, predict others, break a step down."""

from stepscope.batch_size.breakdown import StepBreakdown
from stepscope.batch_size.edit import Edit, edit_site
from stepscope.batch_size.entry import Entry, open_entry
from stepscope.batch_size.entry_profile import Profile, make_profile
from stepscope.batch_size.entry_result import EntryResult
from stepscope.batch_size.find_site import find_site, find_sites
from stepscope.batch_size.profile_session import ProfileSession
from stepscope.batch_size.site import Site
from stepscope.batch_size.sweep_plan import QUICK, SweepPlan
from stepscope.batch_size.worker_process import Cancelled

__all__ = [
    "QUICK",
    "Cancelled",
    "Edit",
    "Entry",
    "EntryResult",
    "Profile",
    "ProfileSession",
    "Site",
    "StepBreakdown",
    "SweepPlan",
    "edit_site",
    "find_site",
    "find_sites",
    "make_profile",
    "open_entry",
]
