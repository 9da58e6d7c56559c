"""Graphs of drawn traces, and the parts that tests compare."""

from __future__ import annotations

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, simulate
from stepscope.graph.graph_schema import EDGE_KINDS
from stepscope.testing import drawn_trace

US = 1000


def graph_of(text: str) -> Graph:
    """The checked graph of a drawn trace."""
    return build_graph(annotate(drawn_trace(text))).check()


def links(graph: Graph, kind: str) -> list[tuple[str | None, str | None]]:
    """Names at both ends of each link of a kind."""
    assert kind in EDGE_KINDS
    names = graph.tasks.text("name")
    rows = zip(graph.links["source"], graph.links["target"], graph.links.text("kind"), strict=True)
    return [(names[source], names[target]) for source, target, one in rows if one == kind]


def tasks(graph: Graph, thread: str) -> list[tuple[str | None, float, float]]:
    """Name, length and gap (us) of each task of a thread, in order."""
    number = list(graph.threads.text("name")).index(thread)
    mine = graph.tasks.take(graph.tasks["thread"] == number)
    lengths = (mine[name] / US for name in ("duration_ns", "gap_ns"))
    return list(zip(mine.text("name"), *(column.tolist() for column in lengths), strict=True))


def starts(graph: Graph) -> dict[str | None, float]:
    """When the first task of each name starts in the simulation, us."""
    times = simulate(graph).start_ns
    names = list(graph.tasks.text("name"))
    return {name: times[names.index(name)] / US for name in names}


def step_us(graph: Graph) -> list[float]:
    """The simulated length of each step, us."""
    return [time / US for time in simulate(graph).step_ns.tolist()]
