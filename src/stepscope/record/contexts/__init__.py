"""Collects a calling-context tree of a whole run, at bounded memory (docs/guide/contexts.md).

A part of its own: the recorder does not use it, and other packages reach it through these names.
The native collector (`native_build`, `native_collector` and the C++ in `record/native`) is built
on first use, by the compiler of the machine.
"""

from stepscope.record.contexts.context_options import ContextOptions, read_drivers
from stepscope.record.contexts.sessions import ContextSession, begin, record_contexts

__all__ = ["ContextOptions", "ContextSession", "begin", "read_drivers", "record_contexts"]
