"""Changes that PyTorch can make to an unmodified training script: a class for each.

A class takes the change's parameters, and replaces one thing of torch before the script uses it: a
setting, a constructor argument, or the call of the model. Its `evidence()` is what it was applied to:
`count` and details; a count of 0 means that nothing changed. Changes are applied in a process of their
own, so nothing needs to be undone. `CHANGES` names them; their declarations are in
`stepscope/models/whatif/changes`, since this file runs in the user's process and must not load the
analysis. It is imported once the script has imported torch.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch

_AMPERE = 8, 0  # compute capability of the first devices that have TF32
_IMAGES = 4  # dimensions of images and of their filters
Around = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


# -- ways in


def with_arguments(cls: Any, arguments: Mapping[str, Any], seen: Callable[[Any], object]) -> None:
    """From now on instances of `cls` are constructed with `arguments`, in place of the script's own.

    Subclasses get them through their call of its constructor; `seen` gets each constructed instance.
    """
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(arguments)
        original(*bound.args, **bound.kwargs)
        seen(self)

    cls.__init__ = construct


def around_outermost_calls(around: Around) -> None:
    """From now on `around(module, call, args, kwargs)` makes each outermost module call.

    A call is outermost if no other module's call is around it. While it runs, `nn.Module` is
    original: inner calls cost what they did, and torch.compile does not see us.
    """
    module_class: Any = torch.nn.Module
    original = module_class.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module_class.__call__ = original
        try:
            return around(self, original, args, kwargs)
        finally:
            module_class.__call__ = call

    module_class.__call__ = call


def is_model(module: Any) -> bool:
    """Whether a module has something to train: a loss or a transform is no model."""
    return any(parameter.requires_grad for parameter in module.parameters())


def device_of(module: Any, default: str) -> str:
    parameter = next(iter(module.parameters()), None)
    return default if parameter is None else str(parameter.device.type)


def join_group() -> int:
    """Join the process group unless the script has done so; the number of processes."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return distributed.get_world_size()


# -- settings: what the script itself sets later counts


class Tf32:
    """FP32 products and convolutions of CUDA on tensor cores."""

    def __init__(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True

    def evidence(self) -> dict[str, Any]:
        has_tf32 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= _AMPERE
        allowed = torch.backends.cuda.matmul.allow_tf32
        return {"count": int(has_tf32 and allowed), "devices": torch.cuda.device_count()}


class CudnnBenchmark:
    """cuDNN times its algorithms at the first call of each size."""

    def __init__(self) -> None:
        torch.backends.cudnn.benchmark = True

    def evidence(self) -> dict[str, Any]:
        cudnn: Any = torch.backends.cudnn
        works = torch.cuda.is_available() and cudnn.is_available()
        return {"count": int(works and cudnn.benchmark), "devices": torch.cuda.device_count()}


# -- arguments of constructors


class Dataloader:
    """Each DataLoader gets `num_workers=workers`: worker processes make the batches."""

    def __init__(self, workers: int = 2) -> None:
        from torch.utils import data

        self._workers = workers
        self._loaders: list[int] = []
        with_arguments(data.DataLoader, {"num_workers": workers}, lambda it: self._loaders.append(id(it)))

    def evidence(self) -> dict[str, Any]:
        return {"count": len(self._loaders), "workers": self._workers}


class FusedOptimizer:
    """Each Adam, AdamW, SGD and Adagrad of torch.optim gets `fused=True`, and so no `foreach`."""

    def __init__(self) -> None:
        self._optimizers: dict[int, Any] = {}
        for name in ("Adam", "AdamW", "SGD", "Adagrad"):
            with_arguments(getattr(torch.optim, name), {"fused": True, "foreach": None}, self._note)

    def evidence(self) -> dict[str, Any]:
        optimizers = list(self._optimizers.values())
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        return {
            "count": len(optimizers),
            "classes": sorted({type(optimizer).__name__ for optimizer in optimizers}),
            "fused": all(bool(group["fused"]) for group in groups),
        }

    def _note(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer


class Compress:
    """Each DistributedDataParallel, also that of `ddp`, all-reduces gradients in bfloat16.

    torch's `bf16_compress_hook` does the same, but on GPUs only.
    """

    def __init__(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._models = 0
        with_arguments(DistributedDataParallel, {}, self._register)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._models, "dtype": "bfloat16"}

    def _register(self, model: Any) -> None:
        model.register_comm_hook(None, lambda state, bucket: _reduce(bucket))
        self._models += 1


def _reduce(bucket: Any) -> Any:
    """A future of the bucket's mean over all processes, sent in 16 bits."""
    from torch import distributed

    gradients = bucket.buffer()
    sent = gradients.to(torch.bfloat16).div_(distributed.get_world_size())
    work: Any = distributed.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda done: gradients.copy_(done.value()[0]))


# -- calls of the model


class Amp:
    """torch.autocast around each outermost module call; bfloat16 needs no gradient scaler."""

    def __init__(self) -> None:
        self._calls = 0
        self._device = "cpu"
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._calls, "dtype": "bfloat16", "device": self._device}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        self._calls += 1
        self._device = device_of(module, self._device)
        with torch.autocast(self._device, dtype=torch.bfloat16):
            return call(module, *args, **kwargs)


class Compile:
    """`model.compile()` before its first call compiles the script's own object."""

    def __init__(self) -> None:
        self._compiled: dict[int, Any] = {}
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": len(self._compiled)}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._compiled and is_model(module):
            self._compiled[id(module)] = module
            module.compile()
        return call(module, *args, **kwargs)


class ChannelsLast:
    """The layout `torch.channels_last`: of a model's filters before its first call, of its images
    before each."""

    def __init__(self) -> None:
        self._models: set[int] = set()
        self._images = 0
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._images, "models": len(self._models)}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        if not is_model(module):
            return call(module, *args, **kwargs)
        if id(module) not in self._models and _lay_out(module):
            self._models.add(id(module))
        args = [self._laid_out(value) for value in args]
        kwargs = {name: self._laid_out(value) for name, value in kwargs.items()}
        return call(module, *args, **kwargs)

    def _laid_out(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() != _IMAGES:
            return value
        self._images += 1
        return value.contiguous(memory_format=torch.channels_last)


def _lay_out(module: Any) -> bool:
    """Change the layout of all filters; False if some have no size before a call."""
    parameters = list(module.parameters())
    sized = [parameter for parameter in parameters if not torch.nn.parameter.is_lazy(parameter)]
    for parameter in sized:
        if parameter.dim() == _IMAGES:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return len(sized) == len(parameters)


class Ddp:
    """Calls of each model in training go through a DistributedDataParallel around it, over gloo.

    The process group uses the variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
    """

    def __init__(self) -> None:
        self._wrapped: dict[int, tuple[Any, Any]] = {}
        self._world_size = 0
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": len(self._wrapped), "world_size": self._world_size, "backend": "gloo"}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and is_model(module)):
            return call(module, *args, **kwargs)
        if id(module) not in self._wrapped:
            self._wrapped[id(module)] = (module, self._wrap(module))
        return self._wrapped[id(module)][1](*args, **kwargs)

    def _wrap(self, module: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        self._world_size = join_group()
        return DistributedDataParallel(module)


class Zero(Ddp):
    """`ddp`, and each optimizer's state sharded by torch's ZeroRedundancyOptimizer.

    The script's optimizer stays as it is except for its step: a sharded optimizer of its class does
    that, over the same parameter groups.
    """

    def __init__(self) -> None:
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
        from torch.distributed.optim import ZeroRedundancyOptimizer

        cls: Any = type(optimizer)
        accepted = inspect.signature(cls.__init__).parameters
        settings = {key: value for key, value in optimizer.defaults.items() if key in accepted}
        sharded: Any = ZeroRedundancyOptimizer(optimizer.param_groups, cls, **settings)
        optimizer.step = sharded.step
        self._sharded[id(optimizer)] = optimizer


class Fsdp:
    """torch's fully_shard on a model before its first call in training, and its shards in optimizers.

    The modules whose paths match the glob `unit` are units; the rest of the model is one more.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._sharded: dict[int, Any] = {}
        self._units = self._world_size = 0
        self._optimizers: list[Any] = []
        with_arguments(torch.optim.Optimizer, {}, self._optimizers.append)
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        count = len(self._sharded) if self._units else 0
        return {"count": count, "units": self._units, "world_size": self._world_size, "backend": "gloo"}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
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


CHANGES: dict[str, Callable[..., Any]] = {
    "amp": Amp,
    "channels_last": ChannelsLast,
    "compile": Compile,
    "compress": Compress,
    "cudnn_benchmark": CudnnBenchmark,
    "dataloader": Dataloader,
    "ddp": Ddp,
    "fsdp": Fsdp,
    "fused_optimizer": FusedOptimizer,
    "tf32": Tf32,
    "zero": Zero,
}
