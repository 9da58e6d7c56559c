"""Names of NVTX ranges, with what torch.autograd.profiler.emit_nvtx appends to them.

Source: torch/csrc/profiler/util.cpp, getNvtxStr.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_APPENDED = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_OPERATOR = re.compile(r"(?!FSDP::)[\w.]+::[\w.:]+|[a-z0-9_]+|\w*Backward\d*|autograd::engine::.*")
_BACKWARD = re.compile(r"(autograd::engine::evaluate_function: )?\w*(Backward\d*|AccumulateGrad)")


class NvtxName(NamedTuple):
    """The name of a range.

    Attributes:
        name: without what was appended.
        sequence: autograd's sequence number, or -1.
        sizes: the shapes of the inputs as JSON text, or empty.
        is_operator: whether it is an operator, and not a range of the user's.
        is_backward: whether autograd ran it in backward.
    """

    name: str
    sequence: int
    sizes: str
    is_operator: bool
    is_backward: bool


def parse(text: str) -> NvtxName:
    """The parts of a range's name.

    Example:
        >>> parse("aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]")[:3]
        ('aten::mm', 5, '[[2, 3], [3, 4]]')
        >>> parse("epoch 3, seq").name
        'epoch 3, seq'
    """
    found = _APPENDED.search(text)
    appended = found is not None and bool(found[0])
    name = text[: found.start()] if found else text
    is_backward = appended and bool(_BACKWARD.fullmatch(name))
    return NvtxName(
        name=name,
        sequence=int(found["sequence"]) if found and found["sequence"] else -1,
        sizes=_json(found["sizes"]) if found and found["sizes"] else "",
        is_operator=is_backward or (appended and bool(_OPERATOR.fullmatch(name))),
        is_backward=is_backward,
    )


def _json(sizes: str) -> str:
    """The text if it is JSON, else nothing."""
    try:
        json.loads(sizes)
    except (ValueError, RecursionError):
        return ""
    return sizes
