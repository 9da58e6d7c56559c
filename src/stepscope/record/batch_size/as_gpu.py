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

_attention: Any = F.scaled_dot_product_attention
_CHOICE = "_default_to_fused_or_foreach"  # of each optimizer's module, by the device of its weights
_ON_GPU = (torch.Tensor.cuda, torch.Tensor.pin_memory)


def keep_as_gpu() -> None:
    """From now on this process calls what keeps as much as the kernels of a GPU do."""
    functional: Any = F
    functional.dropout = torch.dropout = _dropout  # type: ignore[assignment]
    functional.scaled_dot_product_attention = _attention_of_one_kernel
    cuda: Any = torch.cuda
    cuda.synchronize = cuda.set_device = lambda *_: None
    optimizers: list[Any] = [each for name, each in sys.modules.items() if name.startswith("torch.optim.")]
    for module in optimizers:
        if hasattr(module, _CHOICE):
            setattr(module, _CHOICE, lambda *_, **__: (False, True))


class OnCpu(TorchFunctionMode):
    """Leaves on the CPU what a script sends to a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func in _ON_GPU:
            return args[0]
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*map(_on_cpu, args), **named)


def _on_cpu(value: Any) -> Any:
    device = str(value) if isinstance(value, str | torch.device) else ""
    return torch.device("cpu") if device.partition(":")[0] == "cuda" else value


def _dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> Any:
    if not (training and train and p):
        return input
    result = torch.native_dropout(input, p, True)[0]
    return input.copy_(result) if inplace else result


def _attention_of_one_kernel(query: Any, key: Any, value: Any, *args: Any, **others: Any) -> Any:
    others |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False))
    return _attention(query, key, value, **{**others, "dropout_p": 0.0})
