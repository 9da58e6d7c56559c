"""Which batch size: find it in the source, measure a few, predict the rest, break a step down."""

from stepscope.predict.breakdown import Breakdown
from stepscope.predict.edit import Edit, edit_site
from stepscope.predict.entry import Entry, open_entry
from stepscope.predict.find import find_site, find_sites
from stepscope.predict.plan import QUICK, Plan
from stepscope.predict.process import Cancelled
from stepscope.predict.profile import Profile, make_profile
from stepscope.predict.result import Result
from stepscope.predict.session import Session
from stepscope.predict.site import Site

__all__ = [
    "QUICK",
    "Breakdown",
    "Cancelled",
    "Edit",
    "Entry",
    "Plan",
    "Profile",
    "Result",
    "Session",
    "Site",
    "edit_site",
    "find_site",
    "find_sites",
    "make_profile",
    "open_entry",
]
