"""`fused_optimizer`: `fused=True` for the optimizers of torch.optim that support it."""

from typing import Any

from stepscope.record.applied.patches import with_arguments


class Apply:
    """Each Adam, AdamW, SGD and Adagrad gets `fused=True`, and so no `foreach`."""

    def __init__(self) -> None:
        import torch

        self._optimizers: dict[int, Any] = {}
        for name in ("Adam", "AdamW", "SGD", "Adagrad"):
            with_arguments(getattr(torch.optim, name), {"fused": True, "foreach": None}, self._note)

    def evidence(self) -> dict[str, Any]:
        optimizers = list(self._optimizers.values())
        return {
            "count": len(optimizers),
            "classes": sorted({type(optimizer).__name__ for optimizer in optimizers}),
            "fused": all(
                bool(group["fused"]) for optimizer in optimizers for group in optimizer.param_groups
            ),
        }

    def _note(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
