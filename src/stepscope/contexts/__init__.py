"""The calling-context tree: CPU time, device time and memory by call path."""

from stepscope.contexts.bottom_up import bottom_up
from stepscope.contexts.build_tree import build_contexts, fill_contexts
from stepscope.contexts.context_line_costs import LineTotal, line_totals, whole_ns
from stepscope.contexts.hot_path import hot_path, hotspots
from stepscope.contexts.merge import merge_trees
from stepscope.contexts.node_values import MEASURES, Measure, default_measure, measure, measures
from stepscope.contexts.prune import collapse, focus, hide, prune
from stepscope.contexts.recorded_tree import with_contexts
from stepscope.contexts.tree import ContextTree
from stepscope.contexts.tree_difference import TreeDifference, difference

__all__ = [
    "MEASURES",
    "ContextTree",
    "LineTotal",
    "Measure",
    "TreeDifference",
    "bottom_up",
    "build_contexts",
    "collapse",
    "default_measure",
    "difference",
    "fill_contexts",
    "focus",
    "hide",
    "hot_path",
    "hotspots",
    "line_totals",
    "measure",
    "measures",
    "merge_trees",
    "prune",
    "whole_ns",
    "with_contexts",
]
