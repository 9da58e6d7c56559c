"""The multi-scale timeline as data: levels of operations from a step down to its kernels."""

from stepscope.timeline.level import Level
from stepscope.timeline.operation import Operation, Spread
from stepscope.timeline.timeline import Timeline

__all__ = ["Level", "Operation", "Spread", "Timeline"]
