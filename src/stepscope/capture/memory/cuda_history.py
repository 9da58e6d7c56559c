"""The history that PyTorch's CUDA allocator keeps: a ring of events with their Python stacks.

Source: torch/cuda/memory.py (`_record_memory_history`, `_dump_snapshot`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_MOST_EVENTS = 200_000
_cuda: Any = torch.cuda


class CudaHistory:
    """Records allocations on every CUDA device from the moment at which the script first uses one.

    A script that never uses CUDA is left alone: starting it here would break forked workers.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._is_closed = False
        if _cuda.is_available():
            _cuda._lazy_call(self._start)

    def _start(self) -> None:
        if self._is_closed:
            return
        _cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=_MOST_EVENTS
        )
        self._is_on = True

    @property
    def has_events(self) -> bool:
        """Whether there is a history to write."""
        return self._is_on

    def write(self, path: Path) -> None:
        """Write the history and the state of every segment, a pickle, to `path`."""
        _cuda.memory._dump_snapshot(str(path))

    def close(self) -> None:
        """Record no more, and let go of what was recorded."""
        self._is_closed = True
        if self._is_on:
            self._is_on = False
            _cuda.memory._record_memory_history(enabled=None)
