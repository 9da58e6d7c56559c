"""`fused_optimizer`: `fused=True` for the optimizers of torch.optim that know it."""

from __future__ import annotations

from typing import Any

from stepscope.capture.applied.arguments import with_arguments


class Fused:
    """Each Adam, AdamW, SGD and Adagrad is made with `fused=True`, and so without `foreach`."""

    def __init__(self) -> None:
        import torch

        self._made: dict[int, Any] = {}
        for name in ("Adam", "AdamW", "SGD", "Adagrad"):
            with_arguments(getattr(torch.optim, name), {"fused": True, "foreach": None}, self._note)

    def evidence(self) -> dict[str, Any]:
        """How many optimizers, of which classes, and whether all their groups are fused."""
        made = list(self._made.values())
        return {
            "count": len(made),
            "classes": sorted({type(one).__name__ for one in made}),
            "fused": all(bool(group["fused"]) for one in made for group in one.param_groups),
        }

    def _note(self, optimizer: Any) -> None:
        self._made[id(optimizer)] = optimizer
