"""Operators that PyTorch's own modules call: no line of the user's can call others instead."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Mask, Rows

_FILES = re.compile(r"(^|/)torch/nn/modules/\w+\.py$")
_OF_PARTS = re.compile(r"(^|/)torch/nn/modules/transformer\.py$")
_CLASSES_OF_PARTS = re.compile(r"^(MultiheadAttention|Transformer((En|De)coder(Layer)?)?)$")
_REARRANGES = re.compile(
    r"^aten::(_?reshape\w*|_unsafe_view|as_strided|chunk|clone|contiguous|copy_|diagonal|expand"
    r"|flatten|index|narrow|permute|select|slice|split\w*|squeeze|t|transpose|unbind|unflatten"
    r"|unsqueeze|view)$"
)


def are_of_pytorch(context: RuleContext, rows: Rows) -> Mask:
    """Whether PyTorch itself chose each of these operators of the forward pass.

    In its attention and in layers of transformers it chose all; in other modules, where a module
    and its operator are one choice (a ReLU, an embedding), those that rearrange a tensor.
    """
    modules, names = context.trace["modules"], context.events.text("name")
    file, of_class = modules.text("file"), modules.text("class")
    known = file.where(lambda path: bool(_FILES.search(path)))
    parts = file.where(lambda path: bool(_OF_PARTS.search(path)))
    may_be = ~file.where(bool) | known  # of PyTorch: the file is not recorded, or is PyTorch's
    parts |= of_class.where(lambda name: bool(_CLASSES_OF_PARTS.match(name))) & may_be
    rearranges = names.where(lambda name: bool(_REARRANGES.match(name)))[rows]
    module = context.events["module"][rows]
    chosen: Mask = np.append(parts, False)[module] | np.append(known, False)[module] & rearranges
    return chosen
