"""Forward and backward: autograd's marks, links between the two, and recomputation."""

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from stepscope.base.arrays import Ids, Ids32, IntArray, Mask, Rows
from stepscope.facts.annotate.links.subsequences import common_positions
from stepscope.facts.annotate.range_names import operators
from stepscope.trace.nesting import innermost, is_inside, outermost
from stepscope.trace.row_order import last_of_key, rows_by_key
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def is_backward(events: Table) -> Mask:
    """Operators that autograd runs in backward: they have the id of their forward thread."""
    return (events["sequence"] >= 0) & (events["forward_thread"] > 0)


def is_forward(events: Table, rows: Rows | slice = slice(None)) -> Mask:
    """Operators that autograd recorded: they have a sequence number and no forward thread."""
    return (events["sequence"][rows] >= 0) & (events["forward_thread"][rows] <= 0)


_SEQUENCE_BITS = 40  # of a 64-bit key, the rest for the track


def link_backward(trace: Trace) -> Trace:
    """Fill `forward_event` by sequence number and thread, else by `fwdbwd` arrow, else by names.

    Operators read the thread's next sequence number, but only the one that creates a gradient node
    consumes it. Of several operators with one number the last before the backward operator counts.

    Source: torch/csrc/autograd/function.h (sequence_nr) and profiler_kineto.cpp (fwdbwd arrows).
    """
    events = trace.events
    backward = np.flatnonzero(is_backward(events)).astype(np.int32)
    forward = np.flatnonzero(is_forward(events)).astype(np.int32)
    result = np.full(len(events), -1, np.int32)
    arrows = _arrows(trace)
    result[backward] = _by_sequence(events, forward, backward, arrows)
    missing = (result < 0) & (arrows >= 0)
    result[missing] = arrows[missing]
    _link_scripted(events, forward, result)
    if not (result >= 0).any():
        _link_by_names(events, result)
    return trace.with_events(forward_event=result)


# -- links by name and order

_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: |Backwards?\d*$")
_NAMESPACE = re.compile(r"^(\w+::)+")
_NODE = re.compile(r"Backwards?\d*$")
_NODES, _OPERATORS = 1_000, 4_000  # aligned at a time: a table of 16 MB, and a step of most models


@cache
def plain(name: str) -> str:
    """The name of an operator, of its gradient node or of a kernel, as all of them are compared.

    Example:
        >>> plain("aten::relu_"), plain("autograd::engine::evaluate_function: ReluBackward0")
        ('relu', 'relu')
    """
    return _NAMESPACE.sub("", _AUTOGRAD.sub("", name)).replace("_", "").lower()


def _link_by_names(events: Table, result: Ids32) -> None:
    """Link each gradient node with the operator of its name, in reverse order.

    Autograd runs the nodes of a pass from the last that was created to the first. An operator
    creates one node, and none for the operators inside it.

    Source: torch/csrc/autograd/engine.cpp (CompareNodeTaskTime: by sequence number).
    """
    names, parent = events.text("name"), events["parent"]
    operator = events.text("category").mask("cpu_op")
    node = outermost(parent, operator & names.where(lambda name: bool(_NODE.search(name))))
    if not node.any():
        return
    key = names.map(plain).codes.astype(np.int64)
    recorded = np.isin(key, key[node]) & operator & ~is_inside(parent, node)
    nodes, forward = np.flatnonzero(node), np.flatnonzero(outermost(parent, recorded))
    ahead = np.searchsorted(forward, nodes)  # operators before each node
    begins = 0
    for rows in np.split(nodes, np.flatnonzero(np.diff(ahead)) + 1):
        end = int(np.searchsorted(forward, rows[0]))
        _link_pass(key, rows, forward[begins:end][::-1], result)
        begins = end


def _link_pass(key: Ids, nodes: Rows, operators: Rows, result: Ids32) -> None:
    """Link the nodes of a backward pass with the operators before it, last first."""
    nodes = nodes[np.isin(key[nodes], key[operators])]
    while len(nodes) and len(operators):
        some = nodes[:_NODES]
        pairs = common_positions(key[some], key[operators[:_OPERATORS]])
        if not len(pairs):
            return
        result[some[pairs[:, 0]]] = operators[pairs[:, 1]]
        nodes, operators = nodes[_NODES:], operators[pairs[-1, 1] + 1 :]


def _link_scripted(events: Table, forward: Ids32, result: Ids32) -> None:
    """The gradient of a scripted graph belongs to the graph's run.

    Its node is created before the operators of the graph run, so they read the number after it.

    Source: torch/csrc/jit/runtime/graph_executor.cpp (DifferentiableGraphOp).
    """
    names = events.text("name")
    inside = events["parent"][forward]
    graph = names.mask("<forward op>")[inside] & (inside >= 0)
    run = inside[graph]
    nodes = np.flatnonzero(names.where(lambda name: name.endswith("DifferentiableGraphBackward")))
    if len(run):
        wanted = events["sequence"][nodes] + 1
        found = np.append(run, -1)[last_of_key(events["sequence"][forward][graph], run, wanted, nodes - 1)]
        result[nodes] = np.where(found < nodes, found, -1)


def _by_sequence(events: Table, forward: Ids32, backward: Ids32, arrows: Ids32) -> Ids32:
    if not len(forward) or not len(backward):
        return np.full(len(backward), -1, np.int32)
    home = _forward_tracks(events, forward, backward, arrows)
    lane = np.array([home[thread] for thread in events["forward_thread"][backward].tolist()])
    key = _key(events["track"][forward], events["sequence"][forward])
    wanted = _key(lane, events["sequence"][backward])
    found = forward[last_of_key(key, forward, wanted, backward)]  # ids are in order of start
    hit = (found < backward) & (_key(events["track"][found], events["sequence"][found]) == wanted)
    return np.where(hit, found, -1).astype(np.int32)


def _key(track: IntArray, sequence: Ids) -> Ids:
    return (track.astype(np.int64) << _SEQUENCE_BITS) + sequence


def _forward_tracks(events: Table, forward: Ids32, backward: Ids32, arrows: Ids32) -> dict[int, int]:
    """The track of each forward thread, which backward operators identify by autograd's number.

    Arrows decide if there are any; otherwise the track that recorded most of the sequence numbers.
    """
    threads, home = events["forward_thread"], dict[int, int]()
    for thread, rows in rows_by_key(threads, backward).items():
        home[thread] = _most_likely(events, forward, rows.astype(np.int32), arrows, [*home.values()])
    return home


def _most_likely(events: Table, forward: Ids32, backward: Ids32, arrows: Ids32, others: Sequence[int]) -> int:
    """The track of a thread; of equally likely ones, as those of replicas, none of the `others`."""
    tails = arrows[backward]
    tails = tails[tails >= 0]
    if len(tails):
        return int(np.bincount(events["track"][tails]).argmax())
    shared = np.isin(events["sequence"][forward], events["sequence"][backward])
    counts = np.bincount(events["track"][forward][shared], minlength=1)
    likely = np.flatnonzero(counts == counts.max()).tolist()
    return next((track for track in likely if track not in others), int(likely[0]))


def _arrows(trace: Trace) -> Ids32:
    """The event at the tail of the `fwdbwd` arrow to each event, or -1, shape (events,)."""
    flows = trace["flows"]
    kept = flows.text("kind").mask("fwdbwd") & (flows["source_event"] >= 0)
    kept &= flows["target_event"] >= 0
    result = np.full(len(trace.events), -1, np.int32)
    result[flows["target_event"][kept]] = flows["source_event"][kept]
    return result


# -- activation checkpointing


def recomputed(events: Table, in_backward: Mask) -> Mask:
    """Operators that autograd records while it runs backward, but no gradients of `create_graph`.

    Gradients are not recorded, so a node that repeats forward work also runs operators that are
    not. With `create_graph=True`, as in a gradient penalty, all operators of a node are recorded.
    """
    recorded = is_forward(events) & in_backward
    nodes = is_backward(events)
    node = innermost(events["parent"], nodes)
    # The operator that calls each operator, or -1; -1 for other events.
    calls = operators(events)
    above = np.append(innermost(events["parent"], calls), np.int32(-1))[events["parent"]]
    caller = np.where(calls, above, np.int32(-1))
    plain = ~recorded & ~nodes & (caller >= 0) & nodes[caller]
    repeats = np.bincount(caller[plain], minlength=len(events)) > 0
    return recorded & ((node < 0) | repeats[node])
