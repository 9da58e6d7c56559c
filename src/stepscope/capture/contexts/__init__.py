"""Collects a calling-context tree of a whole run, at bounded memory (docs/guide/contexts.md)."""

from stepscope.capture.contexts.record_contexts import record_contexts

__all__ = ["record_contexts"]
