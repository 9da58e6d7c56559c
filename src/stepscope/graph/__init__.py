"""The dependency graph of training steps, its simulation, and the primitives that change it."""

from __future__ import annotations

from stepscope.graph.build import build_graph
from stepscope.graph.graph import Graph, Schedule
from stepscope.graph.inherited import inherited
from stepscope.graph.insert import (
    add_links,
    add_thread,
    append,
    insert,
    numbers_after,
    redirect,
)
from stepscope.graph.launch import insert_device_work, typical_launch
from stepscope.graph.path import breakdown, critical_ms, critical_path
from stepscope.graph.ranks import build_ranks
from stepscope.graph.remove import remove
from stepscope.graph.residue import without_residue
from stepscope.graph.scale import scale
from stepscope.graph.select import parse_selection, select
from stepscope.graph.simulate import Simulation, simulate, simulate_plainly

__all__ = [
    "Graph",
    "Schedule",
    "Simulation",
    "add_links",
    "add_thread",
    "append",
    "breakdown",
    "build_graph",
    "build_ranks",
    "critical_ms",
    "critical_path",
    "inherited",
    "insert",
    "insert_device_work",
    "numbers_after",
    "parse_selection",
    "redirect",
    "remove",
    "scale",
    "select",
    "simulate",
    "simulate_plainly",
    "typical_launch",
    "without_residue",
]
