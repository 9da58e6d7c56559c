"""What `stepscope run --memory` records next to torch.profiler's allocations."""

from __future__ import annotations

import weakref
from typing import Any

from stepscope.capture.archive import Member
from stepscope.capture.memory.cpu_table import CpuTable
from stepscope.capture.memory.cuda_history import CudaHistory
from stepscope.capture.memory.operator_lines import Creations, LineRanges
from stepscope.capture.memory.out_of_memory import OutOfMemory
from stepscope.capture.memory.storages import list_storages
from stepscope.capture.memory.tensor_uses import tensor_uses
from stepscope.capture.module_registry import ModuleRegistry
from stepscope.capture.recording import Recording

Json = dict[str, Any]


class MemoryRecorder:
    """Lines of the user's code for each operator, and what training keeps from step to step.

    Args:
        registry: the model trees.
    """

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lines = LineRanges()
        self._table = CpuTable()
        self._table.start()
        self.cuda = CudaHistory()
        self._creations = Creations()
        self._before: list[Json] = []

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Its state counts as such."""
        self._optimizers.add(optimizer)

    def start(self) -> None:
        """The recorded steps begin."""
        self._creations.close()
        self._before = self.storages()
        self._lines.start()

    def stop(self) -> list[Json]:
        """The recorded steps are over; what is kept now."""
        self._lines.stop()
        return self.storages()

    def members(self, after: list[Json], profiler: Any) -> dict[str, Member]:
        """The members of the capture, once the profiler has stopped.

        Args:
            after: what `stop` returned.
            profiler: that recorded the steps.
        """
        return self._members(self._before, after, uses=tensor_uses(profiler))

    def members_at_failure(
        self, failed: OutOfMemory, storages: list[Json], recording: Recording[Any] | None
    ) -> dict[str, Member]:
        """The members of a capture that ends with an out-of-memory error.

        Args:
            failed: the allocation that failed.
            storages: what training kept at that moment.
            recording: the steps before, if any were recorded.
        """
        recorded = recording.members.get("memory.json") if recording else None
        if isinstance(recorded, dict):
            return {"memory.json": {**recorded, "out_of_memory": failed.to_json()}}
        return self._members([], storages, out_of_memory=failed.to_json())

    def _members(self, before: list[Json], after: list[Json], **more: Json) -> dict[str, Member]:
        found: dict[str, Member] = {
            "memory.json": {
                "format": "stepscope memory", "version": 1,
                "storages": {"before": before, "after": after}, **more,
            }
        }  # fmt: skip
        if self.cuda.has_events:
            found["snapshot.pickle"] = self.cuda.write
        return found

    def storages(self) -> list[Json]:
        """What training keeps, as `list_storages` has it."""
        return list_storages(self._registry, list(self._optimizers), self._creations.lines)

    def detach(self) -> None:
        """Leave torch as it was, but keep the history of CUDA for the capture."""
        self._lines.stop()
        self._creations.close()
        self._table.stop()

    def close(self) -> None:
        """The capture is written: keep nothing."""
        self.detach()
        self._before = []
        self.cuda.close()
