"""`fsdp`: torch's fully_shard on each model that the script calls, over gloo."""

from fnmatch import fnmatchcase
from typing import Any

from stepscope.record.applied.ddp import join_group
from stepscope.record.applied.patches import around_outermost_calls, device_of, is_model, with_arguments


class Apply:
    """Shards a model before its first call in training, and its parameters in optimizers.

    The modules whose paths match the glob `unit` are units; the rest of the model is one more.
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

        self._world_size = join_group()
        mesh = init_device_mesh(device_of(module, "cpu"), (self._world_size,))
        parameters = dict(module.named_parameters())
        for inner in self._outermost(module):
            fully_shard(inner, mesh=mesh)
            self._units += 1
        fully_shard(module, mesh=mesh)
        shards = dict(module.named_parameters())
        self._replace({id(tensor): shards[name] for name, tensor in parameters.items()})

    def _outermost(self, module: Any) -> list[Any]:
        """The modules that are units: those that match and are in no other match."""
        units: dict[str, Any] = {}
        for path, inner in module.named_modules():
            inside = any(path.startswith(f"{outer}.") for outer in units)
            if path and not inside and fnmatchcase(path, self._unit):
                units[path] = inner
        return list(units.values())

    def _replace(self, shards: dict[int, Any]) -> None:
        """Give the shards to optimizers that hold whole parameters."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [shards.get(id(tensor), tensor) for tensor in group["params"]]
