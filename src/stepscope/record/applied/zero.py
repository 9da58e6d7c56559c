"""`zero`: `ddp`, and each optimizer's state sharded by torch's ZeroRedundancyOptimizer."""

from typing import Any

from stepscope.record.applied import ddp
from stepscope.record.applied.patches import with_arguments


class Apply(ddp.Apply):
    """The script's optimizer stays as it is except for its step: a sharded optimizer of its class
    does that, over the same parameter groups."""

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._made: list[Any] = []
        self._sharded: dict[int, Any] = {}
        with_arguments(torch.optim.Optimizer, {}, self._made.append)

    def evidence(self) -> dict[str, Any]:
        classes = sorted(type(optimizer).__name__ for optimizer in self._sharded.values())
        count = super().evidence()["count"] if classes else 0
        return {**super().evidence(), "count": count, "optimizers": classes}

    def _wrap(self, module: Any) -> Any:
        wrapper = super()._wrap(module)
        for optimizer in tuple(self._made):
            self._shard(optimizer)
        self._made.clear()  # sharding makes optimizers, too
        return wrapper

    def _shard(self, optimizer: Any) -> None:
        import inspect

        from torch.distributed.optim import ZeroRedundancyOptimizer

        cls: Any = type(optimizer)
        accepted = inspect.signature(cls.__init__).parameters
        settings = {key: value for key, value in optimizer.defaults.items() if key in accepted}
        sharded: Any = ZeroRedundancyOptimizer(optimizer.param_groups, cls, **settings)
        optimizer.step = sharded.step
        self._sharded[id(optimizer)] = optimizer
