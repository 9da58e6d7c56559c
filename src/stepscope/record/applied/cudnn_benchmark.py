"""`cudnn_benchmark`: cuDNN times its algorithms at the first call of each size."""

from __future__ import annotations

from typing import Any


class Apply:
    """What the script itself sets later counts."""

    def __init__(self) -> None:
        import torch

        torch.backends.cudnn.benchmark = True

    def evidence(self) -> dict[str, Any]:
        import torch

        works = torch.cuda.is_available() and torch.backends.cudnn.is_available()
        return {"count": int(works and torch.backends.cudnn.benchmark), "devices": torch.cuda.device_count()}
