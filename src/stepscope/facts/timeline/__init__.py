"""The multi-scale timeline as data: levels of operations from a step down to its kernels."""

from stepscope.facts.timeline.level import Level
from stepscope.facts.timeline.operation import Operation
from stepscope.facts.timeline.timeline import Timeline

__all__ = ["Level", "Operation", "Timeline"]
