"""`tf32`: FP32 products and convolutions of CUDA on tensor cores."""

from __future__ import annotations

from typing import Any

_AMPERE = 8, 0  # compute capability of the first devices that have TF32


class Apply:
    """What the script itself sets later counts."""

    def __init__(self) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True

    def evidence(self) -> dict[str, Any]:
        import torch

        has_tf32 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= _AMPERE
        allowed = torch.backends.cuda.matmul.allow_tf32
        return {"count": int(has_tf32 and allowed), "devices": torch.cuda.device_count()}
