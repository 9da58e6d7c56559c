"""How many tensors each operator of PyTorch saves for its backward.

Source: PyTorch, tools/autograd/derivatives.yaml.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from stepscope.arrays import Ids
from stepscope.graph import Graph

# Operators of these names save so many; others one: their input or their result.
_SAVED = {
    "*rnn*": 11, "*lstm*": 11, "*gru*": 11,
    "*batch_norm*": 6, "*layer_norm*": 5, "*group_norm*": 4, "*rms_norm*": 3,
    "*scaled_dot_product*": 5,
    "*convolution*": 2, "*max_pool*": 2, "aten::*mm": 2, "aten::mul*": 2, "aten::div*": 2,
    **dict.fromkeys((
        "aten::add", "aten::add_", "aten::sub*", "aten::cat", "aten::stack", "aten::sum",
        "aten::mean", "aten::copy_", "aten::_to_copy", "aten::clone", "*view*", "aten::*reshape*",
        "aten::t", "aten::*transpose*", "aten::permute", "aten::expand", "aten::*squeeze*",
        "aten::*split*", "aten::chunk", "aten::slice", "aten::select", "aten::neg", "aten::detach",
    ), 0),
}  # fmt: skip


def saved_tensors(graph: Graph, operators: Ids) -> Ids:
    """How many tensors each operator (events.id) saves for its backward, shape of `operators`."""
    names = graph.trace.events.text("name").take(operators)
    return np.array([_saved_by(str(name)) for name in names], np.int64)


def _saved_by(name: str) -> int:
    return next((count for glob, count in _SAVED.items() if fnmatchcase(name, glob)), 1)
