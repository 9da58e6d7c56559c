"""Memory as `stepscope fits` estimates it without a GPU, next to what was measured on one.

    python -m benchmarks.gpu.estimates [MODEL ...]

Each model at the smallest size, its own and the largest that was measured, and at the smallest that
ran out of memory. Computes nothing: about five minutes, and 4 GB of memory.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.index import table
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.places import CAP_BYTES, RESULTS, ROOT
from benchmarks.gpu.predictions import first_failed, measured

from stepscope.models.batch_size.entry import open_entry
from stepscope.models.batch_size.measure_entry import estimate_at
from stepscope.models.batch_size.profile_session import estimated_point
from stepscope.models.batch_size.worker_process import Worker

_SCRIPT = """import sys
sys.path.insert(0, {root!r})
import torch
from benchmarks.gpu.models import MODELS
batch_size = 4
spec = MODELS[{model!r}]
with torch.device("cuda"):
    model = spec.build(False).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
host = {{name: tensor.pin_memory() for name, tensor in spec.batch(batch_size, False).items()}}
for _ in range(10):
    batch = {{name: tensor.to("cuda", non_blocking=True, copy=True) for name, tensor in host.items()}}
    optimizer.zero_grad()
    loss = spec.loss(model, batch)
    loss.backward()
    optimizer.step()
"""
_TIMEOUT_S = 600.0


def rows(device: Path, model: str, worker: Worker, folder: Path) -> Iterator[list[str]]:
    """Batch size, bytes in use and their error, reserved bytes and their error, whether it runs."""
    path = folder / f"{model}.py"
    path.write_text(_SCRIPT.format(root=str(ROOT), model=model))
    entry = open_entry(str(path))
    found = measured(device, "batch_sizes").items()
    truth = {one["samples"]: one for key, one in found if key.startswith(f"{model}/")}
    own = min(truth, key=lambda size: abs(size - MODELS[model].batch_size))
    failed = first_failed(device, model)
    for size in sorted({min(truth), own, max(truth), failed or own}):
        point = estimated_point(size, estimate_at(worker, entry, size, _TIMEOUT_S, as_gpu=True))
        fits = "fits" if point.reserved <= CAP_BYTES else "does not fit"
        one = truth.get(size)
        errors = ["", ""]
        if one:
            errors = [f"{point.bytes / one['peak_allocated_bytes'] - 1:+.1%}"]
            errors += [f"{point.reserved / one['peak_reserved_bytes'] - 1:+.1%}"]
        yield [model, f"{size:,}", *errors, fits, "fits" if one else "does not fit"]


def main(models: Sequence[str]) -> None:
    worker = Worker(None, "torch", threading.Event())
    head = ["model", "batch size", "in use, error", "reserved, error", "predicted", "measured"]
    with tempfile.TemporaryDirectory() as folder:
        for device in sorted(path.parent for path in RESULTS.glob("*/batch_sizes.json")):
            lines = [row for model in models for row in rows(device, model, worker, Path(folder))]
            print(device.name, table(head, lines), sep="\n\n")
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
