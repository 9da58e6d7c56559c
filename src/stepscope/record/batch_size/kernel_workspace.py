"""Memory that CPU kernels hold for themselves, for fake tensors: oneDNN's convolutions and LSTM.

oneDNN's convolutions copy their arguments into a blocked layout, compute into a blocked result and
copy that into a plain one: read from the allocations recorded inside `aten::mkldnn_convolution` and
`aten::convolution_backward` (PyTorch 2.13, AVX-512).

torch takes oneDNN's LSTM for real CPU tensors only; fake ones would be unrolled, step by step, and
hold other memory. Here each layer is one `aten::mkldnn_rnn_layer`, as in
aten/src/ATen/native/mkldnn/RNN.cpp. Its memory kept for backward follows the layout in oneDNN's
src/cpu/rnn/rnn_utils.cpp, checked against recorded allocations for seven sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_aten: Any = torch.ops.aten
_FEW_CHANNELS = 8  # with fewer than a vector holds, an argument stays as it is
_LSTM_MODE = 2  # of torch's RNN kernels
_FLOAT, _PAGE = 4, 4096  # bytes
_CUDNN_KEEPS = 5  # values a step: four gates and the cell; GNMT's memory on an H200 says 4.96
_vf: Any = torch._VF
_layer: Any = torch.ops.aten.mkldnn_rnn_layer.default
_backward: Any = torch.ops.aten.mkldnn_rnn_layer_backward.default


def workspace(func: Any, args: Any, result: Any) -> int:
    """The most bytes, beside its results, that an operator holds at once while it runs."""
    rule = _RULES.get(func)
    return rule(args, result) if rule else 0


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


def _lstm_workspace(args: Any, _: Any) -> int:
    """Both weights in another layout, and the gates."""
    steps, samples, inputs = map(int, args[0].shape)
    width = int(args[6].shape[-1])
    gates = samples * _leading(4 * width)
    return (inputs + width) * _leading(4 * width) * _FLOAT + gates * (steps * _FLOAT + _FLOAT // 2)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _copied(tensor: Any) -> int:
    return _size(tensor) if tensor.shape[1] >= _FEW_CHANNELS else 0


_RULES: dict[Any, Callable[[Any, Any], int]] = {
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _layer: _lstm_workspace,
    _backward: _lstm_workspace,
}


class OneDnnLstm(TorchFunctionMode):
    """Replaces `torch.lstm` where a real CPU would use oneDNN."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        return _lstm(*args) if func is _vf.lstm and _is_for_onednn(args) else func(*args, **kwargs or {})


def _is_for_onednn(args: Sequence[Any]) -> bool:
    """Not for packed sequences, projections, or other types than float."""
    if len(args) != 9 or not isinstance(args[1], list | tuple):
        return False
    tensors = [args[0], *args[1], *args[2]]
    plain = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return plain and bool(args[1][0].shape == args[1][1].shape)


def _lstm(
    x: Any,
    states: Any,
    weights: Any,
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    both_ways: bool,
    batch_first: bool,
) -> Any:
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    hidden, cell = (state.contiguous() for state in states)
    ways, last = (2 if both_ways else 1), []
    of_each = 4 if biased else 2
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            number = layer * ways + way
            own = list(weights[number * of_each : (number + 1) * of_each])
            own += [torch.zeros(own[0].shape[0])] * (4 - len(own))
            own += [hidden[number], cell[number], way == 1, [], _LSTM_MODE, hidden.shape[2], 1, biased]
            y, h, c, _ = _layer(x, *own, False, False, train)
            outputs.append(y)
            last.append((h, c))
        x = torch.cat(outputs, x.dim() - 1) if both_ways else outputs[0]
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    h, c = (torch.stack([pair[place] for pair in last]) for place in (0, 1))
    return (x.transpose(0, 1) if batch_first else x), h, c


def with_workspace(func: Any, args: Any, result: Any, as_gpu: bool = False) -> Any:
    """The result of a fake layer with a workspace as large as a real one's."""
    if func is not _layer or not args[15]:
        return result
    steps, samples, inputs = args[0].shape
    on_gpu = _CUDNN_KEEPS * steps * samples * args[10] * _FLOAT
    size = on_gpu if as_gpu else kept_bytes(steps, samples, inputs, args[10])
    return (*result[:3], torch.empty(size, dtype=torch.uint8))


def kept_bytes(steps: int, samples: int, inputs: int, width: int) -> int:
    """What one layer and direction keeps for backward, bytes: its gates and states at all steps."""
    states = 2 * (steps + 1) * samples * _FLOAT
    return (
        _pages(steps * samples * _leading(4 * width) * _FLOAT)
        + 3 * _pages(states * _leading(max(inputs, width)))
        + 2 * _pages(states * _vectors(width))
        + _pages(steps * samples * _leading(width) * _FLOAT)
    )


def _vectors(size: int) -> int:
    """A row in whole vectors of 64 bytes."""
    return -(-size // 16) * 16


def _leading(size: int) -> int:
    """A row as oneDNN lays it out: not a multiple of 1 KiB, which would crowd one cache set."""
    row = _vectors(size)
    return row + 16 if row % 256 == 0 else row


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
