"""What later steps do not pay: first-use costs, and delays by a busy machine."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyze.compilation_names import COMPILING
from stepscope.analyze.event_search import EventSearch
from stepscope.annotate.steps.one_off_delays import one_off_delays
from stepscope.arrays import Mask, Rows
from stepscope.trace.schema import STAGES

_LOADING = (
    r"^(cu|cuda|hip)(Module(Load|GetFunction|EnumerateFunctions)|Library(Load|GetKernel|GetModule)"
    r"|Link(Create|Add|Complete)|FuncGetAttributes|FuncSetAttribute|KernelGetFunction)"
)
_LAUNCH = re.compile(r"^(cu|cuda|hip)(Ext)?(Module)?Launch\w*Kernel")
_SLOW_LAUNCH_NS = 1_000_000  # launching a loaded kernel takes some 10 us
_MIN_STEPS = 3
_RARE = 0.1  # of what the step with the most of it takes


def first_use(search: EventSearch) -> Rows:
    """Events that later steps do not pay again.

    Loading of modules, launches of 1 ms or more of a kernel that has not run before, and, with
    three steps or more, compilation in a single step.

    Returns:
        events.id, int64, shape (n,).
    """
    if search.context_trace:
        return np.zeros(0, np.int64)
    loads = search.find(_LOADING, category="runtime")
    compiles = search.outermost(search.find(COMPILING, category=("annotation", "cpu_op")))
    steps = np.unique(search.events["step"][compiles])
    if len(search.steps) < _MIN_STEPS or len(steps) > 1:
        compiles = compiles[:0]
    return np.unique(np.concatenate([loads, _slow_launches(search), compiles]))


def one_off(search: EventSearch) -> Rows:
    """Operators that took 1 ms or more in one step, and next to nothing in the others.

    A process that lost its core looks like that. Loading of data does not count, nor does an
    operator that waits for the device. An operator counts if it is fast at its place in the other
    steps, or if all operators of its name are.

    Returns:
        events.id, int64, shape (n,); none for fewer than three steps.
    """
    steps = np.unique(search.steps["step"])
    if search.context_trace or len(steps) < _MIN_STEPS:
        return np.zeros(0, np.int64)
    stages = tuple(stage for stage in STAGES if stage != "data_loading")
    rows = search.find(category="cpu_op", stage=stages)
    rows = rows[(search.events["self_ns"][rows] >= _SLOW_LAUNCH_NS)]
    delayed = np.intersect1d(one_off_delays(search.trace, search.rank), rows)
    every = search.find(category="cpu_op", stage=stages)
    place = np.searchsorted(steps, search.events["step"][every])
    codes, name = np.unique(search.events["name"][every], return_inverse=True)
    spent = np.bincount(name * len(steps) + place, search.events["self_ns"][every],
                        len(codes) * len(steps)).reshape(len(codes), len(steps))  # fmt: skip
    ordered = np.sort(spent, axis=1)
    once = codes[ordered[:, -2] <= _RARE * ordered[:, -1]]
    return np.union1d(delayed, rows[np.isin(search.events["name"][rows], once)])


def _slow_launches(search: EventSearch) -> Rows:
    """Launches that load their kernel: slow, and the first of their kernel."""
    events = search.events
    work = search.launched[np.isin(search.caller[search.launched], search.find(category="runtime"))]
    calls = search.caller[work].astype(np.int64)
    work = work[(events["duration_ns"][calls] >= _SLOW_LAUNCH_NS) & _launches(search, calls)]
    if not len(work):
        return np.zeros(0, np.int64)
    codes = events["name"].astype(np.int64)
    every = search.launched[np.argsort(events["start_ns"][search.caller[search.launched]])]
    _, first = np.unique(codes[every], return_index=True)
    return search.caller[np.intersect1d(work, every[first])].astype(np.int64)


def _launches(search: EventSearch, calls: Rows) -> Mask:
    named: Mask = search.events.text("name").where(lambda name: bool(_LAUNCH.search(name)))[calls]
    return named
