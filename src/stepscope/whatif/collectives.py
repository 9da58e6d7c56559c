"""Collectives of a graph: which there are, and others in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph, add_links, append, redirect, select

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
_ALL_REDUCE = re.compile(r"all_?-?reduce", re.IGNORECASE)


def all_reduces(graph: Graph) -> Mask:
    """Tasks that are all-reduces by their own name or that of the call, bool, shape (tasks,)."""
    named = graph.tasks.text("name").where(lambda name: bool(_ALL_REDUCE.search(name)))
    called = select(graph, operator="*all_reduce*") | select(graph, operator="*allreduce*")
    return (named | called) & select(graph, category="communication")


@dataclass(frozen=True)
class Phase:
    """One part of a collective: its name, the thread that runs it, and its time for each, ns."""

    name: str
    thread: int
    duration_ns: NDArray[np.float64]


def decompose(graph: Graph, tasks: Ids, phases: Sequence[Phase]) -> Graph:
    """A graph in which each of some collectives is done in phases, on threads of their own.

    The task itself stays as the moment at which the phases may begin; what waited for it waits for
    the last of them.

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
    behind = _next_in_order(graph, tasks)
    graph = redirect(graph, tasks, chain[-1])
    graph = add_links(graph, chain[:-1].ravel(), chain[1:].ravel(), "communication")
    return add_links(graph, chain[-1][behind >= 0], behind[behind >= 0], "communication")


def _next_in_order(graph: Graph, tasks: Ids) -> Ids:
    """What computes behind each on the same thread, or -1: on a compute stream it has to wait."""
    thread = graph.tasks["thread"]
    speaks = select(graph, category="communication")
    after = np.minimum(tasks + 1, len(graph) - 1)
    waits = (thread[after] == thread[tasks]) & ~speaks[after] & (after > tasks)
    waits &= graph.threads["ordered"][thread[tasks]] > 0
    return np.where(waits, after, -1)


def _stages(graph: Graph, tasks: Ids, count: int) -> object:
    stages = graph.tasks.text("stage")
    return type(stages)(np.tile(stages.codes[tasks], count), stages.values)
