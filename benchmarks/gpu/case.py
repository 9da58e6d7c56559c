"""One way to train a model: the variations whose effect is to be known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model and how it is trained; by default in FP32, with PyTorch's own default Adam.

    Attributes:
        model: a name in `models.MODELS`.
        batch_size: None for the model's usual one.
        precision: fp32 (TF32 off), tf32, bf16 or fp16 (both by autocast).
        adam: forloop, foreach or fused.
        channels_last: images and weights with the channel as the fastest axis.
        checkpointing: activations of the model's blocks are computed again in backward.
        compiled: under torch.compile.
    """

    model: str
    batch_size: int | None = None
    precision: str = "fp32"
    adam: str = "foreach"
    channels_last: bool = False
    checkpointing: bool = False
    compiled: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data for a result."""
        return asdict(self)
