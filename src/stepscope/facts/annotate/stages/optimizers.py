"""Which optimizer each run of a stage works for, and optimizer steps that run a closure.

A loop may hold several optimizers: those of a GAN's generator and discriminator, an actor's and a
critic's. The *update* of an optimizer is the forward pass, loss, backward pass and step that end
with it. Optimizers that step one after the other, with no pass between them, share their passes.
LBFGS and Lightning run the passes inside the step: `optimizer.step(closure)`.
"""

import re
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Codes, Codes8, Ids, Ids32, Mask, Rows, Times
from stepscope.facts.annotate.links.backward import is_forward
from stepscope.facts.annotate.links.launches import on_host
from stepscope.facts.annotate.range_names import CODE
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.trace.nesting import outermost
from stepscope.trace.row_order import count_within, last_begun, running_span
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

# Our recorder's range has the user's name of the optimizer; torch's own only its class.
_NAMED = re.compile(r"^stepscope\.optimizer: (.+)$")
_BY_CLASS = re.compile(r"^Optimizer\.step#(.+)\.step$")
_PASSES = [CODE[stage] for stage in ("forward", "loss", "backward")]
_OPTIMIZER, _ZERO_GRAD = CODE["optimizer"], CODE["zero_grad"]
_NONE = -1


class OptimizerCalls(NamedTuple):
    """The steps of optimizers in the loop, in order."""

    starts: Times  # int64, ns, shape (n,)
    ends: Times  # int64, ns, shape (n,)
    step: Ids32  # of the training loop, int32, shape (n,)
    name: Ids  # position in `names`, shape (n,)
    names: list[str]  # of the optimizers


def optimizer_calls(trace: Trace, among: Mask) -> OptimizerCalls:
    """The steps of optimizers that a trace names, without those that another wraps.

    It searches `among` events of one thread, shape (events,); they have steps.
    """
    events = trace.events
    texts = events.text("name")
    here = among & (events["step"] >= 0)
    for pattern in (_NAMED, _BY_CLASS):
        found = [pattern.match(text) for text in texts.values]
        named = here & np.array([*map(bool, found), False])[texts.codes]
        rows = np.flatnonzero(outermost(events["parent"], named))
        if len(rows):
            break
    ends = events.spans(rows)[1]
    names = {name: code for code, name in enumerate(sorted({match[1] for match in found if match}))}
    code = np.array([names[match[1]] if match else _NONE for match in found] + [_NONE])
    name = code[texts.codes[rows]]
    return OptimizerCalls(events["start_ns"][rows], ends, events["step"][rows], name, list(names))


def split_by_optimizer(
    calls: OptimizerCalls, step: Ids32, starts: Times, ends: Times, stage: Codes
) -> tuple[Ids32, Times, Times, Codes]:
    """Cut the runs of the optimizer stage in which another optimizer begins to step."""
    other = np.flatnonzero(calls.name[1:] != calls.name[:-1])
    before, changes = calls.starts[other], calls.starts[other + 1]
    run = running_span(starts, ends, changes)
    inside = (run >= 0) & (stage[run] == _OPTIMIZER) & (starts[run] <= before)
    run, changes = run[inside], changes[inside]
    order = np.argsort(np.concatenate([starts, changes]), kind="stable")
    row = np.concatenate([np.arange(len(starts)), run])[order]
    begins = np.concatenate([starts, changes])[order]
    same = np.append(row[1:] == row[:-1], False)
    finish = np.where(same, np.append(begins[1:], 0), ends[row])
    return step[row], begins, finish, stage[row]


def name_optimizers(calls: OptimizerCalls, runs: Table) -> Table:
    """Fill `optimizer` of the table `stages`: of runs that end with a step of one."""
    if not len(calls.starts):
        return runs
    stage, upcoming = runs["stage"].astype(np.int64), _upcoming(calls, runs)
    passes = np.isin(stage, _PASSES) & (upcoming >= 0)
    leads = np.isin(np.arange(len(calls.starts)), upcoming[passes])
    leads[0] = True
    group = np.cumsum(leads) - 1  # calls without a pass of their own share those of the call before
    joint = _joint_names(calls, group)
    own = [calls.names[name] for name in calls.name.tolist()]
    is_step = stage == _OPTIMIZER
    of_pass = np.isin(stage, [*_PASSES, _ZERO_GRAD])
    found = [
        None if call < 0 or not (steps or passes) else own[call] if steps else joint[group[call]]
        for call, steps, passes in zip(upcoming.tolist(), is_step, of_pass, strict=True)
    ]
    return runs.with_columns(optimizer=Text.of(found))


def _upcoming(calls: OptimizerCalls, runs: Table) -> Rows:
    """The call in which each run begins, else the one that it leads to in its step; -1 for none.

    A closure's passes lie in the call.
    """
    begun = running_span(calls.starts, calls.ends, runs["start_ns"])
    found = np.where(begun >= 0, begun, last_begun(calls.starts, runs["start_ns"]) + 1)
    known = found < len(calls.starts)
    known &= calls.step[np.minimum(found, len(calls.starts) - 1)] == runs["step"]
    return np.where(known, found, _NONE)


def _joint_names(calls: OptimizerCalls, group: Ids) -> list[str]:
    members: list[dict[str, None]] = [{} for _ in range(int(group[-1]) + 1)]
    for place, name in zip(group.tolist(), calls.name.tolist(), strict=True):
        members[place][calls.names[name]] = None
    return [", ".join(names) for names in members]


# -- closures
_BACKWARD = CODE["backward"]


def release_closures(trace: Trace, own: Codes8, stage: Codes8) -> tuple[Codes8, Mask]:
    """Take what an optimizer's closure runs out of the optimizer stage.

    An optimizer range in which backward work begins runs a closure, until the last of that work
    ends. Events in it that no name identifies are left to be assigned by position, as if the
    closure were called by the training loop. The ranges around it have no stage: on the thread of
    the loop they only pass the calls on, or wait for autograd's thread.

    Args:
        own: the stage of each event by its own name, -1 if unknown, shape (n,).
        stage: the same, passed on to events inside, shape (n,).

    Returns:
        The new stages, and the ranges without a stage, bool, each shape (n,).
    """
    events = trace.events
    start, end = events.spans()
    host = on_host(trace)
    loop = host & (events["track"] == main_track(trace))
    inside = loop & (stage == _OPTIMIZER)
    backward = np.flatnonzero(host & (stage == _BACKWARD))
    result, wrappers = stage.copy(), np.zeros(len(stage), np.bool_)
    rows = np.flatnonzero(outermost(events["parent"], inside & (own == _OPTIMIZER)))
    rows = rows[count_within(start[backward], start[rows], end[rows]) > 0]
    candidates = np.flatnonzero(inside)
    forward = start[loop & (is_forward(events) | (stage == CODE["forward"]))]
    for row in rows:
        first, last = np.searchsorted(start[backward], [start[row], end[row]])
        until = end[backward[first:last]].max()
        part = np.searchsorted(start[candidates], [start[row], min(until, end[row])])
        within = candidates[part[0] : part[1]]
        around = within[count_within(start[backward[first:last]], start[within], end[within]) > 0]
        wrappers[around] = True
        between = _between_calls(start[within], end[within], end[backward[first:last]], forward)
        released = ~between & (own[within] != _OPTIMIZER) | np.isin(within, around)
        result[within[released]] = _NONE
    return result, wrappers


def _between_calls(start: Times, end: Times, backward_ends: Times, forward: Times) -> Mask:
    """What follows a backward pass with no forward work since: LBFGS between two evaluations."""
    ends = np.sort(backward_ends)
    before = np.searchsorted(ends, start, side="right")
    since = ends[np.maximum(before - 1, 0)]
    return (before > 0) & (count_within(forward, since, end) == 0)
