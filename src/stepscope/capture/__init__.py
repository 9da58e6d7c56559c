"""Records training steps inside the user's process; imports torch only once the user has."""

from stepscope.capture.api import profile, trace_handler

__all__ = ["profile", "trace_handler"]
