"""`ddp`: each model that the script calls inside DistributedDataParallel, over gloo."""

from typing import Any

from stepscope.record.applied.patches import around_outermost_calls, is_model


class Apply:
    """The script's own model stays as it is; its calls in training go through the wrapper.

    The process group uses the variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT).
    """

    def __init__(self) -> None:
        self._wrapped: dict[int, tuple[Any, Any]] = {}
        self._world_size = 0
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": len(self._wrapped), "world_size": self._world_size, "backend": "gloo"}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if not (torch.is_grad_enabled() and is_model(module)):
            return call(module, *args, **kwargs)
        if id(module) not in self._wrapped:
            self._wrapped[id(module)] = (module, self._wrap(module))
        return self._wrapped[id(module)][1](*args, **kwargs)

    def _wrap(self, module: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        self._world_size = join_group()
        return DistributedDataParallel(module)


def join_group() -> int:
    """Join the process group unless the script has done so; the number of processes."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return distributed.get_world_size()
