"""How kernels were launched, as metrics of their contexts (DEEPCONTEXT section 4.1, "GPU metrics")."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.facts.contexts.metrics import LAUNCH_METRICS
from stepscope.trace.trace import Trace

_Size = tuple[float, float, float]


class _Launch(msgspec.Struct):
    """The launch configuration in a kernel's arguments, as Kineto names it."""

    grid: _Size | None = None
    block: _Size | None = None
    registers: float | None = msgspec.field(default=None, name="registers per thread")
    shared_bytes: float | None = msgspec.field(default=None, name="shared memory")
    occupancy: float | None = msgspec.field(default=None, name="est. achieved occupancy %")

    def values(self) -> tuple[float | None, ...]:
        """The values in the order of `LAUNCH_METRICS`."""
        blocks = None if self.grid is None else float(np.prod(self.grid))
        threads = None if blocks is None or self.block is None else blocks * float(np.prod(self.block))
        occupancy = None if self.occupancy is None else self.occupancy / 100
        return blocks, threads, self.registers, self.shared_bytes, occupancy


_DECODER = msgspec.json.Decoder(_Launch)


def launch_metrics(trace: Trace, kernels: Ids) -> Iterator[tuple[str, Ids, Floats]]:
    """The metrics of launches that a trace recorded.

    Args:
        kernels: events.id, int64, shape (kernels,).

    Yields:
        Name of a metric, the kernels that have it, and its values, both of shape (known,).
    """
    source = trace.events["source"][kernels]
    order = np.argsort(source, kind="stable")
    table = np.array([_values(text) for text in trace.arguments.texts(source[order])], np.float64)
    for name, values in zip(LAUNCH_METRICS, table.reshape(-1, len(LAUNCH_METRICS)).T, strict=True):
        known = np.isfinite(values)
        if known.any():
            yield name, kernels[order[known]], values[known]


def _values(text: bytes) -> tuple[float | None, ...]:
    try:
        return _DECODER.decode(text).values()
    except msgspec.DecodeError:  # another recorder's arguments, of the same names
        return (None,) * len(LAUNCH_METRICS)
