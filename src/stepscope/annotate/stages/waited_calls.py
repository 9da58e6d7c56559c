"""Which stage the training loop waits for, where it waits for results of compiled programs.

A wait may last longer than the work: `jax.block_until_ready` goes through a tree of arrays in
Python, and a small program has ended before its call returns. All of it is time of the call.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.names.compiled_calls import is_compiled_call, is_wait
from stepscope.arrays import Codes, Ids, Rows, Times
from stepscope.trace.nesting import outermost
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

# XLA's names of `jax.device_put`, whose results a program may wait for too.
_PUT = re.compile(r"^(shard_args|BatchedDevicePut|DevicePut\w*)$")
_FOR_ARRAYS = re.compile(r"block_until_ready|BlockHostUntilReady")
_OTHER, _NONE = STAGES.index("other"), -1


class Waits(NamedTuple):
    """Waits of one thread, none within another, in order of start; arrays of shape (n,).

    Attributes:
        starts, ends: ns.
        stage: what each waits for, a position in `STAGES`; -1 if that is not known.
    """

    starts: Times
    ends: Times
    stage: Codes

    def at(self, moments: Times) -> Codes:
        """The stage that the thread waits for at each moment, -1 where it does not wait."""
        place = np.searchsorted(self.starts, moments, side="right") - 1
        here = (place >= 0) & (np.append(self.ends, _NONE)[place] > moments)
        result: Codes = np.where(here, np.append(self.stage, _NONE)[place], _NONE)
        return result


def waits_for_calls(trace: Trace, track: int) -> Waits:
    """The waits of a thread, each with the stage of the last call before it on this thread.

    A call of several stages, or of none that is known, counts as the last work that it ran. Who
    waits for arrays may wait for data that moves to a device; who reads a value waits for a
    program. A wait within a call is part of the call.
    """
    events = trace.events
    names, here = events.text("name"), events["track"] == track
    wait, call = here & names.where(is_wait), here & names.where(is_compiled_call)
    puts = here & names.where(lambda name: bool(_PUT.match(name)))
    outer = np.flatnonzero(outermost(events["parent"], wait | call | puts))
    waits = outer[wait[outer]]
    compiled, all_calls = (_last_before(events, outer[one[outer]], waits)
                           for one in (call, call | puts))  # fmt: skip
    blocks = names.take(waits).where(lambda name: bool(_FOR_ARRAYS.search(name)))
    of = np.where(blocks, all_calls, compiled)
    starts = events["start_ns"][waits]
    return Waits(starts, starts + events["duration_ns"][waits], _stages(trace, of, compiled, waits))


def _last_before(events: Table, calls: Rows, waits: Rows) -> Rows:
    """The last of some calls that began before each wait, -1 if none did."""
    start = events["start_ns"]
    place = np.searchsorted(start[calls], start[waits], side="right") - 1
    return np.append(calls, _NONE)[place]


def _stages(trace: Trace, of: Rows, compiled: Rows, waits: Rows) -> Codes:
    """The stage of what each wait waits for: of its call, else of the last work of its program."""
    events = trace.events
    stage = np.append(events["stage"].astype(np.int64), _NONE)[of]
    begin = np.append(events["start_ns"], np.iinfo(np.int64).max)[of]
    unknown = (of == compiled) & np.isin(stage, [_OTHER, _NONE])
    return np.where(unknown, _last_stage(trace, begin, events["start_ns"][waits]), stage)


def _last_stage(trace: Trace, begin: Times, end: Times) -> Codes:
    """The stage of the compiled work of the host that ended last in each span, -1 if none did."""
    events = trace.events
    rows: Ids = np.flatnonzero((events["scope"] >= 0) & on_host(trace))
    ended = events["start_ns"][rows] + events["duration_ns"][rows]
    order = np.argsort(ended, kind="stable")
    rows, ended = rows[order], ended[order]
    last = np.searchsorted(ended, end, side="right") - 1
    began = np.append(events["start_ns"][rows], np.iinfo(np.int64).min)[last]
    stage = np.append(events["stage"][rows].astype(np.int64), _NONE)[last]
    return np.where((last >= 0) & (began >= begin), stage, _NONE)
