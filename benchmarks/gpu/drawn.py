"""Synthetic samples that are drawn one by one, as a data loader wants them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.models import MODELS, Batch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset[dict[str, Tensor]]):
    """`samples` samples for a model, each drawn when it is asked for."""

    def __init__(self, model: str, quick: bool, samples: int) -> None:
        self._batch, self._quick, self._samples = MODELS[model].batch, quick, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[0] for name, tensor in self._batch(1, self._quick).items()}


def drawn_batches(model: str, quick: bool, samples: int, device: str, workers: int) -> Iterator[Batch]:
    """Batches without end."""
    loader = DataLoader(
        Drawn(model, quick, 10**9), batch_size=samples, num_workers=workers, pin_memory=device == "cuda"
    )
    return iter(loader)
