"""Memory without running: steps on fake tensors, which compute nothing.

They run in a separate process, since a kernel without a fake implementation may end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.batch_size.entry import Entry
from stepscope.batch_size.fit import fit_peaks
from stepscope.batch_size.linear_model import Model
from stepscope.batch_size.worker_process import Worker
from stepscope.errors import BatchError

Json = dict[str, Any]


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory on a CPU, as estimated with fake tensors.

    Attributes:
        batch: the batch size that `memory` and `modules` are of.
        bytes: the peak, by batch size.
        memory: the peak by kind: weights, buffers, gradients, optimizer_state, activations,
            temporaries.
        modules: the same for each module, without those inside it.
        model: the peak over the batch size; None for a single size.
        error: relative to the peak measured at `batch`; None where none was.
    """

    batch: int
    bytes: Mapping[int, int]
    memory: Mapping[str, int]
    modules: Sequence[Json]
    model: Model | None = None
    error: float | None = None

    def to_json(self) -> Json:
        """As `stepscope batch --json` has it."""
        model = self.model
        return {
            "batch": self.batch,
            "points": [{"batch": batch, "bytes": size} for batch, size in self.bytes.items()],
            "memory": dict(self.memory),
            "modules": list(self.modules),
            "model": model and {"c_bytes": model.slope, "d_bytes": model.intercept},
            "error": self.error,
        }


def estimate(
    worker: Worker,
    entry: Entry,
    batches: Sequence[int],
    measured: int | None = None,
    timeout_s: float = 600.0,
) -> MemoryEstimate:
    """Estimate the peak at some batch sizes.

    Args:
        worker: the measuring process.
        entry: the entry file.
        batches: the first one is also broken down.
        measured: the peak measured there.
        timeout_s: seconds after which it is given up.

    Returns:
        The estimate.

    Raises:
        BatchError: the script cannot run on fake tensors; says why.
    """
    facts = {batch: _run(worker, entry, batch, timeout_s) for batch in dict.fromkeys(batches)}
    sizes = {batch: int(one["bytes"]) for batch, one in facts.items()}
    first = facts[batches[0]]
    model = fit_peaks(list(sizes), list(sizes.values())) if len(sizes) > 1 else None
    error = first["bytes"] / measured - 1 if measured else None
    return MemoryEstimate(batches[0], sizes, first["memory"], first["modules"], model, error)


def _run(worker: Worker, entry: Entry, batch: int, timeout_s: float) -> Json:
    facts = worker.run(entry.request(batch, estimate=True, timeout_s=timeout_s)).facts
    if facts["outcome"] == "estimated":
        return facts
    error = facts.get("error", {})
    reason = error.get("message") or facts.get("why") or facts["outcome"].replace("_", " ")
    raise BatchError(
        f"{entry.path} does not run on tensors without values: {reason}",
        error.get("file"),
        error.get("line"),
    )
