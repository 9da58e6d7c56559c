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

        cudnn: Any = torch.backends.cudnn
        works = torch.cuda.is_available() and cudnn.is_available()
        return {"count": int(works and cudnn.benchmark), "devices": torch.cuda.device_count()}
