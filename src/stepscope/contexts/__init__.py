"""The calling-context tree: where time, device time and memory went, by path of calls."""

from stepscope.contexts.bottom_up import bottom_up
from stepscope.contexts.build import build_contexts
from stepscope.contexts.difference import Difference, difference
from stepscope.contexts.hot import hot_path, hotspots
from stepscope.contexts.lines import LineTotal, line_totals, whole_ns
from stepscope.contexts.measure import MEASURES, Measure, default_measure, measure, measures
from stepscope.contexts.merge import merge_trees
from stepscope.contexts.prune import focus, hide, prune, put_together
from stepscope.contexts.recorded import with_contexts
from stepscope.contexts.tree import ContextTree

__all__ = [
    "MEASURES",
    "ContextTree",
    "Difference",
    "LineTotal",
    "Measure",
    "bottom_up",
    "build_contexts",
    "default_measure",
    "difference",
    "focus",
    "hide",
    "hot_path",
    "hotspots",
    "line_totals",
    "measure",
    "measures",
    "merge_trees",
    "prune",
    "put_together",
    "whole_ns",
    "with_contexts",
]
