"""The calling-context tree: CPU time, device time and memory by call path."""

from stepscope.facts.contexts.build_tree import build_contexts, with_contexts
from stepscope.facts.contexts.context_line_costs import line_totals, whole_ns
from stepscope.facts.contexts.node_values import (
    MEASURES,
    TreeMeasure,
    default_measure,
    hot_path,
    hotspots,
    measure,
    measures,
)
from stepscope.facts.contexts.prune import aligned, bottom_up, focus, hide
from stepscope.facts.contexts.tree import ContextTree

__all__ = ["MEASURES", "ContextTree", "TreeMeasure", "aligned", "bottom_up", "build_contexts"]
__all__ += ["default_measure", "focus", "hide", "hot_path", "hotspots", "line_totals", "measure", "measures"]
__all__ += ["whole_ns", "with_contexts"]
