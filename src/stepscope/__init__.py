"""See where a deep-learning training step spends its time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.version import __version__

if TYPE_CHECKING:
    from stepscope.facts.load import open
    from stepscope.record import profile, record_contexts, trace_handler
    from stepscope.record.api import watch
    from stepscope.record.step_detector import step
    from stepscope.trace.trace import Trace

__all__ = [
    "StepscopeError",
    "Trace",
    "__version__",
    "open",
    "profile",
    "record_contexts",
    "step",
    "trace_handler",
    "watch",
]

# Loaded when first asked for: a training script that records must not load the analysis.
_HOMES = {
    "Trace": "stepscope.trace.trace",
    "load_ipython_extension": "stepscope.faces.notebook",
    "open": "stepscope.facts.load",
    "profile": "stepscope.record",
    "record_contexts": "stepscope.record",
    "step": "stepscope.record.step_detector",
    "trace_handler": "stepscope.record",
    "watch": "stepscope.record.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
