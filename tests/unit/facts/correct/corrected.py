"""Captures as `stepscope.open` annotates them: without the cost of their recording."""

from stepscope.facts.annotate import annotate
from stepscope.facts.correct import without_recording_cost
from stepscope.trace.trace import Trace


def corrected_trace(recorded: Trace) -> Trace:
    return annotate(without_recording_cost(recorded) if recorded.metadata.capture else recorded)
