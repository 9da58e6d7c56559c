"""`checkpoint`: activation checkpointing."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.range_names import MODULE_RANGE
from stepscope.graph import Graph, add_links, insert, numbers_after, simulate
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.owners import ACTIVATIONS, INPUTS, UNKNOWN
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.layers import first_of, in_backward, operators, regions
from stepscope.trace.row_order import begins_run, ends_run, inverse
from stepscope.trace.sets import distinct_rows

_SAVE_NOTHING = (
    "aten::add aten::add_ aten::sub* aten::cat aten::stack aten::sum aten::mean aten::copy_ aten::_to_copy "
    "aten::clone *view* aten::*reshape* aten::t aten::*transpose* aten::permute aten::expand "
    "aten::*squeeze* aten::*split* aten::chunk aten::slice aten::select aten::neg aten::detach"
)
# Operators of these names save so many tensors; others one: their input or their result.
_SAVED = {
    "*rnn*": 11,
    "*lstm*": 11,
    "*gru*": 11,
    "*batch_norm*": 6,
    "*layer_norm*": 5,
    "*group_norm*": 4,
    "*rms_norm*": 3,
    "*scaled_dot_product*": 5,
    "*convolution*": 2,
    "*max_pool*": 2,
    "aten::*mm": 2,
    "aten::mul*": 2,
    "aten::div*": 2,
    **dict.fromkeys(_SAVE_NOTHING.split(), 0),
}


def saved_tensors(graph: Graph, operators: Ids) -> Ids:
    """How many tensors each operator (events.id) saves for its backward, shape of `operators`."""
    names = map(str, graph.trace.events.text("name").take(operators))
    matching = ((count for glob, count in _SAVED.items() if fnmatchcase(name, glob)) for name in names)
    return np.array([next(counts, 1) for counts in matching], np.int64)


def checkpoint(graph: Graph, module: str, call_us: float = 80.0, saved_us: float = 7.0) -> Graph:
    """Activation checkpointing: backward of each module first repeats its forward.

    On the CPU and on the device. `torch.utils.checkpoint` takes CPU time itself, for each call and
    for each tensor that is saved for backward.

    Args:
        module: glob for module paths, such as `layers.*`; of nested matches the outermost counts.
        call_us: CPU time of `torch.utils.checkpoint` for a call, us.
        saved_us: the same for each tensor that an operator of the call saves for backward, us.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016;
    `torch.utils.checkpoint`.
    """
    key = _calls_of_region(graph, module)
    forward = (key >= 0) & graph.tasks.text("stage").mask("forward")
    backward = (key >= 0) & in_backward(graph)
    if not forward.any():
        raise ChangeError(f"checkpoint: no forward work is in a module that matches {module!r}")
    if (np.append(graph.trace.events["recompute"], 0)[graph.tasks["event"]][backward] > 0).any():
        raise ChangeError("checkpoint: backward recomputes forward already")
    again, anchors = _repeats(graph, key, forward, backward)
    if not len(again):
        raise ChangeError(f"checkpoint: no backward work is in a module that matches {module!r}")
    host = ~graph.on_device[again]
    starts = begins_run(anchors[host])
    took = call_us + saved_us * _saved(graph, again[host], starts)
    graph, new = _repeated(graph, again, anchors)
    calls = new[host][starts]
    names = ["torch.utils.checkpoint"] * len(calls)
    return insert(graph, calls, names, in_front=True, duration_ns=np.rint(took * 1e3))[0]


def _repeats(graph: Graph, key: Ids, forward: Mask, backward: Mask) -> tuple[Ids, Ids]:
    """The tasks to repeat, those on the CPU first, and the task in front of which each goes."""
    rows, before = [], []
    for side in (False, True):
        repeated = np.flatnonzero(forward & (graph.on_device == side))
        begins = first_of(key, np.flatnonzero(backward & (graph.on_device == side)), key[repeated])
        rows.append(repeated[begins >= 0])
        before.append(begins[begins >= 0])
    return np.concatenate(rows), np.concatenate(before)


def _calls_of_region(graph: Graph, module: str) -> Ids:
    """A number for each matching module, step and turn of forward and backward; -1 for other tasks.

    Where gradients are accumulated, the modules of a step have several turns.
    """
    region, backward = regions(graph, module), in_backward(graph)
    known = (region >= 0) & (graph.tasks["step"] >= 0)
    rows = np.flatnonzero(known & (backward | graph.tasks.text("stage").mask("forward")))
    columns = region[rows], graph.tasks["step"][rows], graph.on_device[rows].astype(np.int64)
    order = np.lexsort((simulate(graph).start_ns[rows], *columns))
    again = np.append(False, backward[rows[order]][:-1] & ~backward[rows[order]][1:])
    first = begins_run(distinct_rows(*columns)[1][order])
    turn: Ids = np.cumsum(again & ~first)
    turn -= np.maximum.accumulate(np.where(first, turn, 0))
    result = np.full(len(graph), -1, np.int64)
    result[rows] = distinct_rows(*columns[:2], turn[inverse(order)])[1]
    return result


def _repeated(graph: Graph, rows: Ids, before: Ids) -> tuple[Graph, Ids]:
    """Repeat tasks, each before another one, and launch what they launch; the new tasks' ids."""
    tasks = graph.tasks
    names = [f"{name} again" for name in tasks.text("name").take(rows)]
    facts = {
        name: tasks[name][rows] for name in ("duration_ns", "gap_ns", "category", "kind", "module", "bytes")
    }
    # The gap after the last of them is not the module's.
    facts["gap_ns"] = np.where(ends_run(before), 0, facts["gap_ns"])
    graph, new = insert(graph, before, names, in_front=True, stage="backward", **facts)
    old = numbers_after(len(graph), new)[rows]
    launch, copy = graph.launches, np.full(len(graph), -1)
    copy[old] = new
    both = (copy[launch["source"]] >= 0) & (copy[launch["target"]] >= 0)
    lag = np.minimum(launch["lag_ns"], np.median(launch["lag_ns"]) if len(launch) else 0)
    source, target = copy[launch["source"][both]], copy[launch["target"][both]]
    return add_links(graph, source, target, "launch", lag[both]), new


def _saved(graph: Graph, rows: Ids, starts: Mask) -> Floats:
    """How many tensors the operators of each run of tasks save for backward."""
    operator, run = operators(graph)[rows], np.cumsum(starts) - 1
    known = operator >= 0
    runs, each = np.unique(np.stack([run[known], operator[known]]), axis=1)
    return np.bincount(runs, saved_tensors(graph, each), minlength=int(starts.sum())).astype(np.float64)


_INSTANT = 0.5  # the repeated forward takes no time on the recorded clock, which counts ns
_RANDOM_STATE_BYTES = 5056  # of torch.get_rng_state()


@dataclass(frozen=True)
class _ModuleCall:
    """One call of a checkpointed module: its forward, and its backward, ns."""

    begin: float
    end: float
    backward: float
    done: float


def checkpointed(memory: RecordedMemory, module: str, **_: float) -> RecordedMemory:
    """The memory if calls of some modules are checkpointed.

    What forward of such a module keeps for its backward is released as soon as forward no longer
    reads it, and the module's input is kept. When its backward begins, all is allocated again.

    Source: `torch.utils.checkpoint`, with `use_reentrant=False`.
    """
    calls = _module_calls(memory.recording, module)
    if not calls:
        raise ChangeError(f"checkpoint: no forward and backward of a module that matches {module!r}")
    for call in calls:
        memory = memory.with_lifetimes(_repeated_lifetimes(memory, call))
    return memory


def _module_calls(recording: AllocationRecord, module: str) -> list[_ModuleCall]:
    events = recording.trace.events
    ranges = events.text("name").where(lambda name: name.startswith(MODULE_RANGE))
    called = events.text("name").where(lambda name: fnmatchcase(name[len(MODULE_RANGE) :].strip(), module))
    rows = np.flatnonzero(ranges & called)
    begin, end = recording.starts[rows], recording.ends[rows]
    around = np.maximum.accumulate(np.append(-np.inf, end[:-1])) if len(rows) else end
    outermost = end > around
    linked = np.flatnonzero(events["forward_event"] >= 0)
    linked = linked[np.argsort(recording.starts[events["forward_event"][linked]], kind="stable")]
    forward = recording.starts[events["forward_event"][linked]]
    calls = []
    for low, high in zip(begin[outermost].tolist(), end[outermost].tolist(), strict=True):
        own = linked[slice(*np.searchsorted(forward, [low, high]))]
        if len(own):
            first, last = recording.starts[own].min(), recording.ends[own].max()
            calls.append(_ModuleCall(low, high, float(first), float(last)))
    return calls


def _repeated_lifetimes(memory: RecordedMemory, call: _ModuleCall) -> Lifetimes:
    life = memory.lifetimes
    inside = (life.start >= call.begin) & (life.start < call.end)
    kept = inside & (life.end > call.end) & (life.kind == ACTIVATIONS)
    saved_inside, saved_elsewhere, last_read = _needs(memory.recording, call, life)
    ends_early = kept & saved_inside & ~saved_elsewhere
    end = np.where(ends_early, np.minimum(life.end, last_read), life.end)
    # A module's input is kept until its forward was repeated and its backward is over.
    given = (life.start < call.begin) & _read_inside(memory.recording, call, life)
    given &= np.isin(life.kind, [ACTIVATIONS, INPUTS])
    end = np.where(given, np.maximum(end, call.done), end)
    again = np.flatnonzero(inside & (ends_early | (life.end <= call.end)))
    # What the repeated forward allocates just before backward begins.
    copy = life.take(again)
    until = np.where(copy.end <= call.end, _again(copy.end, call), copy.end)
    repeated = life.changed(end=end).plus(copy.changed(start=_again(copy.start, call), end=until))
    if memory.recording.device != "cpu":
        return repeated
    # The state of the CPU's random numbers, which the checkpoint keeps to repeat dropout.
    return repeated.plus(Lifetimes.added([_RANDOM_STATE_BYTES], [call.begin], [call.done], [UNKNOWN]))


def _again(time: Floats, call: _ModuleCall) -> Floats:
    """Moments of forward, in the instant before backward begins."""
    share = (time - call.begin) / max(call.end - call.begin, 1.0)
    return call.backward - _INSTANT * (1 - share)


def _needs(recording: AllocationRecord, call: _ModuleCall, life: Lifetimes) -> tuple[Mask, Mask, Floats]:
    """For each row: whether backward of this call, or of others, needs it; and its last read.

    The last read by forward is the end of that operator, or of the one that made it.
    """
    uses = recording.uses
    saver = recording.starts[uses.saver]
    own = uses.backward & (saver >= call.begin) & (saver < call.end)
    other = uses.backward & (uses.saver >= 0) & ~own
    by_own, by_other = (np.isin(life.recorded, uses.allocation[saved]) for saved in (own, other))
    return by_own, by_other, recording.last_read[life.recorded]


def _read_inside(recording: AllocationRecord, call: _ModuleCall, life: Lifetimes) -> Mask:
    uses = recording.uses
    start = recording.starts[uses.event]
    inside = ~uses.backward & (start >= call.begin) & (start < call.end)
    return np.isin(life.recorded, uses.allocation[inside])


CHANGE = Change(
    checkpoint,
    group="Memory",
    basis="the measured forward, repeated",
    assumptions=(
        "forward takes as long the second time, launches included; all of it is repeated, and "
        "torch.utils.checkpoint takes what it took here (benchmarks/checkpoint_cost.py)",
        "the freed memory is not used for anything",
    ),
    error=0.12,
    ranked=False,
    memory=checkpointed,
    memory_error=0.01,
)
