"""The Python frame at which a compiled operation was traced, and what files of frames are."""

from __future__ import annotations

import re

import numpy as np

from stepscope.arrays import Ids
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|stepscope/capture)/")


def is_users(file: str) -> bool:
    """Whether a file is the user's: of no installed package, and not of the recorder.

    Example:
        >>> is_users("/home/me/train.py"), is_users("/venv/lib/python3.11/site-packages/a.py")
        (True, False)
    """
    return bool(file) and not file.startswith("<") and not _LIBRARY.search(file)


def frames_of_events(trace: Trace) -> Ids:
    """The frame of the largest origin of each event, a row of `frames`, -1 if unknown.

    Returns:
        int64, shape (events,).
    """
    of_group = np.append(_frames_of_groups(trace["origins"]), -1)
    result: Ids = of_group[trace.events["origin"]]
    return result


def _frames_of_groups(origins: Table) -> Ids:
    """The frame of the largest origin of each group, at the group's first row."""
    order = np.lexsort((-origins["share"], origins["first"]))
    first, place = np.unique(origins["first"][order], return_index=True)
    result = np.full(len(origins), -1, np.int64)
    result[first] = origins["frame"][order[place]]
    return result
