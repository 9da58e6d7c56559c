"""Records training steps inside the user's process; imports torch only once the user has."""

from stepscope.capture.api import profile, trace_handler
from stepscope.capture.contexts.api import record_contexts

__all__ = ["profile", "record_contexts", "trace_handler"]
