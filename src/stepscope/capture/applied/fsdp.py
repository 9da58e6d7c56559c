"""`fsdp`: each model that the script calls sharded by torch's fully_shard, over gloo."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from stepscope.capture.applied.arguments import with_arguments
from stepscope.capture.applied.ddp import joined
from stepscope.capture.applied.outermost import around_outermost_calls, device_of, is_model


class Fsdp:
    """A model is sharded before its first call while training, and what optimizers hold of it.

    Args:
        unit: glob on the paths of the modules that are units; the rest of the model is one more.
    """

    def __init__(self, unit: str) -> None:
        import torch

        self._unit = unit
        self._sharded: dict[int, Any] = {}
        self._units = self._world_size = 0
        self._optimizers: list[Any] = []
        with_arguments(torch.optim.Optimizer, {}, self._optimizers.append)
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        """How many models, their units, and among how many processes."""
        count = len(self._sharded) if self._units else 0
        facts = {"units": self._units, "world_size": self._world_size, "backend": "gloo"}
        return {"count": count, **facts}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if id(module) not in self._sharded and torch.is_grad_enabled() and is_model(module):
            self._sharded[id(module)] = module
            self._shard(module)
        return call(module, *args, **kwargs)

    def _shard(self, module: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._world_size = joined()
        mesh = init_device_mesh(device_of(module, "cpu"), (self._world_size,))
        whole = dict(module.named_parameters())
        for inner in self._outermost(module):
            fully_shard(inner, mesh=mesh)
            self._units += 1
        fully_shard(module, mesh=mesh)
        shards = dict(module.named_parameters())
        self._replace({id(one): shards[name] for name, one in whole.items()})

    def _outermost(self, module: Any) -> list[Any]:
        """The modules that are units: those that match and are in no other that does."""
        found: dict[str, Any] = {}
        for path, inner in module.named_modules():
            inside = any(path.startswith(f"{outer}.") for outer in found)
            if path and not inside and fnmatchcase(path, self._unit):
                found[path] = inner
        return list(found.values())

    def _replace(self, shards: dict[int, Any]) -> None:
        """Optimizers that hold whole parameters get the shards."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [shards.get(id(one), one) for one in group["params"]]
