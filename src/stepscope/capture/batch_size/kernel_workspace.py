"""What CPU kernels allocate for themselves and free before they return, where it is much.

oneDNN's convolutions copy their arguments into a blocked layout, compute into a blocked result and
copy that into a plain one. Told from the allocations recorded inside `aten::mkldnn_convolution` and
`aten::convolution_backward` (PyTorch 2.13, AVX-512).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepscope.capture.batch_size.fake_lstm import lstm_workspace

_aten: Any = torch.ops.aten
# With fewer channels than a vector holds, an argument stays as it is.
_FEW_CHANNELS = 8


def workspace(func: Any, args: Any, result: Any) -> int:
    """The most bytes that an operator holds at once while it runs, before its results are noted.

    Returns:
        0 where it holds nothing but its results.
    """
    rule = _RULES.get(func)
    return rule(args, result) if rule else lstm_workspace(func, args)


def _convolution(args: Any, result: Any) -> int:
    image, weight = args[0], args[1]
    output = _size(result)
    return max(_copied(image) + _size(weight) + output, 2 * output)


def _convolution_backward(args: Any, result: Any) -> int:
    gradient, image, weight = args[0], args[1], args[2]
    wanted = args[10]
    to_image, to_weight = (_size(image) if wanted[0] else 0), (_size(weight) if wanted[1] else 0)
    for_image = max(_size(gradient) + _size(weight) + to_image, 2 * to_image) if wanted[0] else 0
    arguments = _size(gradient) + _copied(image)
    for_weight = max(arguments + to_weight, 2 * to_weight) if wanted[1] else 0
    return max(for_image, to_image + for_weight)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _copied(tensor: Any) -> int:
    return _size(tensor) if tensor.shape[1] >= _FEW_CHANNELS else 0


_RULES: dict[Any, Callable[[Any, Any], int]] = {
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
}
