"""The calling-context tree: where time, device time and memory went, by path of calls."""

from stepscope.contexts.build import build_contexts
from stepscope.contexts.tree import ContextTree

__all__ = ["ContextTree", "build_contexts"]
