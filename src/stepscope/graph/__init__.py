"""The dependency graph of training steps, its simulation, and the primitives that change it."""

from __future__ import annotations

from stepscope.graph.build import build_graph
from stepscope.graph.graph import Graph
from stepscope.graph.simulate import Simulation, simulate, simulate_plainly

__all__ = ["Graph", "Simulation", "build_graph", "simulate", "simulate_plainly"]
