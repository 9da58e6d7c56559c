"""The dependency graph of training steps, its simulation, and primitives that edit it."""

from stepscope.graph.build_graph import build_graph, insert_device_work, typical_launch
from stepscope.graph.critical_path import breakdown, critical_ms, critical_path
from stepscope.graph.data_flow import data_basis, with_execution_trace
from stepscope.graph.graph import Graph, Schedule, inherited, without_unexplained_delays
from stepscope.graph.joint_ranks import build_ranks, sending_pairs
from stepscope.graph.primitives import (
    add_links,
    add_thread,
    append,
    insert,
    last_on_thread,
    numbers_after,
    parse_selection,
    redirect,
    remove,
    removed_by,
    scale,
    select,
    without,
)
from stepscope.graph.simulate import Simulation, simulate, simulate_plainly

__all__ = ["Graph", "Schedule", "Simulation", "add_links", "add_thread", "append", "breakdown"]
__all__ += ["build_graph", "build_ranks", "critical_ms", "critical_path", "data_basis", "inherited"]
__all__ += ["insert", "insert_device_work", "last_on_thread", "numbers_after", "parse_selection"]
__all__ += ["redirect", "remove", "removed_by", "scale", "select", "sending_pairs", "simulate"]
__all__ += ["simulate_plainly", "typical_launch", "with_execution_trace", "without"]
__all__ += ["without_unexplained_delays"]
