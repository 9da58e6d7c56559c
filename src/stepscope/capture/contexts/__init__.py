"""Collects a calling-context tree of a whole run, at bounded memory (docs/contexts.md)."""

from stepscope.capture.contexts.api import record_contexts

__all__ = ["record_contexts"]
