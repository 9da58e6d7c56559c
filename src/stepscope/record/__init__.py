"""Records training steps inside the user's process; imports torch only after the user does."""

from stepscope.record.api import profile, trace_handler
from stepscope.record.contexts import record_contexts

__all__ = ["profile", "record_contexts", "trace_handler"]
