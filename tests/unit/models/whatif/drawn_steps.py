"""Small steps for the changes, and what the tests ask of the changed graphs."""

from __future__ import annotations

from typing import Any

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, simulate
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.testing import drawn_trace

V100 = ({"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0},)


def graph_of(text: str, **metadata: Any) -> Graph:
    """The checked graph of a drawn trace."""
    return build_graph(annotate(drawn_trace(text, **metadata))).check()


def changed(graph: Graph, *texts: str) -> Graph:
    """The graph after some changes, each checked."""
    for text in texts:
        graph = parse_request(text, CHANGES).apply(graph)
    return graph


def step_us(graph: Graph, *texts: str) -> float:
    """Mean length of a step after some changes, us."""
    return float(simulate(changed(graph, *texts)).step_ns.mean()) / 1000


def device_names(graph: Graph) -> list[str | None]:
    """What the devices run, stream by stream in order."""
    return list(graph.tasks.text("name").take(graph.on_device))


def start_us(graph: Graph, every: bool = False) -> Any:
    """When the first task of each name starts, us; with `every`, all names with their times."""
    times = (simulate(graph).start_ns / 1000).tolist()
    rows = list(zip(graph.tasks.text("name"), times, strict=True))
    return sorted(rows, key=lambda row: row[1]) if every else dict(reversed(rows))
