"""Which operator reads or writes which tensor, from torch.profiler's own tree of events.

The exported trace names the shapes of an operator's tensors, but not the memory they lie in; only
the tree that the process keeps has their addresses. With them the analysis knows what each
allocation is for, and until when it is needed.

Source: torch/profiler/_memory_profiler.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope.capture.profiler_events import profiler_events

Json = dict[str, Any]


def tensor_uses(profiler: Any) -> Json:
    """The tensors of every operator that a stopped torch.profiler recorded.

    Args:
        profiler: recorded with `record_shapes` and `profile_memory`.

    Returns:
        Columns of one length, `time_ns` (when the operator began), `address` (of the storage),
        `shape` and `dtype`, positions in the lists `shapes` and `dtypes`.
    """
    columns: Json = {"time_ns": [], "address": [], "shape": [], "dtype": []}
    shapes: dict[tuple[int, ...], int] = {}
    dtypes: dict[str, int] = {}
    for event in profiler_events(profiler):
        kind, fields = event.typed
        if "TorchOp" not in str(kind):
            continue
        for tensor in _tensors(fields.inputs):
            columns["time_ns"].append(event.start_time_ns)
            columns["address"].append(tensor.storage_data_ptr)
            columns["shape"].append(shapes.setdefault(tuple(tensor.sizes), len(shapes)))
            columns["dtype"].append(
                dtypes.setdefault(str(tensor.dtype).removeprefix("torch."), len(dtypes))
            )
    return {**columns, "shapes": [*map(list, shapes)], "dtypes": [*dtypes]}


def _tensors(inputs: Any) -> Iterator[Any]:
    for value in inputs:
        if isinstance(value, list):
            yield from _tensors(value)
        elif getattr(value, "storage_data_ptr", None):
            yield value
