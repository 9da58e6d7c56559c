"""Collectives of a graph: find them, refuse them, replace them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, append, redirect, select

_ALL_REDUCE = re.compile(r"all_?-?reduce", re.IGNORECASE)


def all_reduces(graph: Graph) -> Mask:
    """All-reduces, by their own name or the name of their call, bool, shape (tasks,)."""
    named = graph.tasks.text("name").where(lambda name: bool(_ALL_REDUCE.search(name)))
    called = select(graph, operator="*all_reduce*") | select(graph, operator="*allreduce*")
    return (named | called) & select(graph, category="communication")


def refuse_communication(graph: Graph, change: str) -> None:
    """Raise ChangeError if the steps communicate already."""
    if select(graph, category="communication").any():
        raise ChangeError(f"{change}: these steps communicate already")


@dataclass(frozen=True)
class CollectivePhase:
    """One phase of some collectives: its name, the thread that runs it, and each one's time, ns."""

    name: str
    thread: int
    duration_ns: Floats


def decompose(graph: Graph, tasks: Ids, phases: Sequence[CollectivePhase]) -> Graph:
    """Replace some collectives by phases on threads of their own.

    The task itself stays as the moment at which the phases may begin; tasks that waited for it wait
    for the last phase.

    Args:
        graph: any graph.
        tasks: the collectives, tasks.id, shape (n,).
        phases: one after the other, with times of shape (n,).
    """
    length = graph.tasks["duration_ns"].copy()
    length[tasks] = 0
    graph = graph.with_tasks(duration_ns=length)
    threads = np.repeat([phase.thread for phase in phases], len(tasks))
    names = [phase.name for phase in phases for _ in tasks]
    count = len(phases)
    facts = {name: np.tile(graph.tasks[name][tasks], count) for name in ("step", "stage", "module")}
    times = np.concatenate([np.rint(phase.duration_ns) for phase in phases])
    graph, new = append(
        graph, threads, names, duration_ns=times, category="communication", kind="communication",
        step=facts["step"], module=facts["module"], stage=_stages(graph, tasks, count),
    )  # fmt: skip
    chain = np.concatenate([tasks[None], new.reshape(count, len(tasks))])
    following = _next_in_order(graph, tasks)
    graph = redirect(graph, tasks, chain[-1])
    graph = add_links(graph, chain[:-1].ravel(), chain[1:].ravel(), "communication")
    return add_links(graph, chain[-1][following >= 0], following[following >= 0], "communication")


def _next_in_order(graph: Graph, tasks: Ids) -> Ids:
    """The computation after each on the same thread, or -1: on a compute stream it has to wait."""
    thread = graph.tasks["thread"]
    collective = select(graph, category="communication")
    after = np.minimum(tasks + 1, len(graph) - 1)
    waits = (thread[after] == thread[tasks]) & ~collective[after] & (after > tasks)
    waits &= graph.threads["ordered"][thread[tasks]] > 0
    return np.where(waits, after, -1)


def _stages(graph: Graph, tasks: Ids, count: int) -> object:
    stages = graph.tasks.text("stage")
    return type(stages)(np.tile(stages.codes[tasks], count), stages.values)
