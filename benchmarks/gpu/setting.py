"""Common settings of a run's measurements: the device, sizes, seed and result folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.gpu.places import RESULTS

# A quick run takes these models only, except where every model is built.
_QUICK = ("dlrm", "resnet50")


class Unavailable(Exception):
    """Something that cannot be measured here, and why."""


@dataclass(frozen=True)
class Setting:
    """Where and how large to measure.

    Attributes:
        device: cuda or cpu.
        quick: tiny models and few steps, for tests.
        out: the folder of results.
        seed: of weights and data.
    """

    device: str
    quick: bool
    out: Path
    seed: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether device work and device memory can be measured."""
        return self.device == "cuda"

    def of(self, models: Iterable[str]) -> list[str]:
        """Those of `models` to measure."""
        return [model for model in models if not self.quick or model in _QUICK]

    def need_gpu(self, what: str) -> None:
        """Refuse to measure `what` on a CPU."""
        if not self.on_gpu:
            raise Unavailable(f"{what} needs a GPU")


def no_gpu_reason() -> str | None:
    """Why nothing can be measured on a GPU here; None where it can."""
    if torch.version.cuda is None:
        return f"expected a PyTorch with CUDA, found {torch.__version__}"
    if not torch.cuda.is_available():
        return "expected a GPU, found none that PyTorch can use"
    return None


def default_out(device: str) -> Path:
    """The folder of this device's results."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
