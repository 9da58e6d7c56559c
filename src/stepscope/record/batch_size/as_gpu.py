"""A script as it runs on a GPU, on a machine without one: for memory on fake tensors of the CPU device.

Attention with dropout is written out on a CPU, and dropout keeps its mask as floats; on a GPU one
kernel does each. An optimizer takes all weights together there, with a temporary copy of all.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

# Source: PyTorch, docs/source/amp.md, "CUDA Ops that can autocast to float32": those of the CPU are fewer.
_FP32 = (
    "__pow__ binary_cross_entropy_with_logits cross_entropy exp group_norm layer_norm log log_softmax "
    "mse_loss nll_loss norm pow softmax sum"
)
_OWNERS = (torch, F, torch.Tensor)
_IN_FP32 = {getattr(owner, name, None) for owner in _OWNERS for name in _FP32.split()} - {None}
autocasts: list[str] = []  # that began, by the device that was asked for
_autocast: Any = torch.autocast.__init__
_attention: Any = F.scaled_dot_product_attention
_CHOICE = "_default_to_fused_or_foreach"  # of each optimizer's module, by the device of its weights
_ON_GPU = (torch.Tensor.cuda, torch.Tensor.pin_memory)


def keep_as_gpu() -> None:
    """From now on this process calls what keeps as much as the kernels of a GPU do."""
    functional: Any = F
    functional.dropout = _dropout
    functional.scaled_dot_product_attention = _attention_of_one_kernel
    autocast: Any = torch.autocast
    autocast.__init__ = _autocast_on_cpu
    cuda: Any = torch.cuda
    cuda.synchronize = cuda.set_device = lambda *_: None
    optimizers: list[Any] = [each for name, each in sys.modules.items() if name.startswith("torch.optim.")]
    for module in optimizers:
        if hasattr(module, _CHOICE):
            setattr(module, _CHOICE, lambda *_, **__: (False, True))


class OnCpu(TorchFunctionMode):
    """Leaves on the CPU what a script sends to a GPU; autocast keeps in FP32 what it keeps there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func in _ON_GPU:
            return args[0]
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = [_in_fp32(value) for value in args]
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*map(_on_cpu, args), **named)


def _autocast_on_cpu(self: Any, device_type: str = "cuda", *args: Any, **others: Any) -> None:
    autocasts.append(device_type)
    _autocast(self, "cpu", *args, **others)


def _in_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _on_cpu(value: Any) -> Any:
    device = str(value) if isinstance(value, str | torch.device) else ""
    return torch.device("cpu") if device.partition(":")[0] == "cuda" else value


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not (training and p):
        return input
    result = torch.native_dropout(input, p, True)[0]
    return input.copy_(result) if inplace else result


def _attention_of_one_kernel(query: Any, key: Any, value: Any, *args: Any, **others: Any) -> Any:
    others |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False))
    return _attention(query, key, value, **{**others, "dropout_p": 0.0})
