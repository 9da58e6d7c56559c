"""Operation names without paths, addresses and boilerplate, and names for groups of operations.

Source: HOTLINE appendix C.2 (Rename, Summarize) and figure 14.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from stepscope.annotate.device.kernel_names import short_kernel
from stepscope.arrays import Times

_WIDEST = 200
_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
_RULES: tuple[_Rule, ...] = (
    (re.compile(r"^<(\w+)>\(\d+\): <?([^<>]+)>?$"), lambda found: f"{found[2]} {found[1]}"),
    (re.compile(r"^(?:.*[/\\])?([^/\\]+?)\(\d+\): <?([^<>]+)>?$"),
     lambda found: f"{found[2]} {found[1]}"),
    (re.compile(r"^<built-in method (\S+) of (.+?)(?: object)?(?: at 0x[0-9a-f]+)?>$"),
     lambda found: f"{found[1]} {found[2].rpartition('.')[2]}"),
    (re.compile(r"^<built-in function (\S+)>$"), lambda found: found[1]),
    (re.compile(r"^(?:autograd::engine::evaluate_function: |torch::autograd::)+(.+)$"),
     lambda found: found[1]),
    (re.compile(r"^nn\.Module: (.+)$"), lambda found: found[1]),
    (re.compile(r"^stepscope\.module: ?(.*)$"), lambda found: found[1] or "model"),
    (re.compile(r"^Optimizer\.\w+#(.+)$"), lambda found: found[1]),
    (re.compile(r"^enumerate\(DataLoader\)#.*$"), lambda found: "enumerate(DataLoader)"),
    (re.compile(r"^#+ *(.*?) *#+$"), lambda found: found[1]),
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """An event's name as briefly as it stays recognizable.

    Example:
        >>> short_name("torch/utils/data/dataloader.py(1173): _get_data")
        '_get_data dataloader.py'
    """
    for pattern, short in _RULES:
        if found := pattern.match(name):
            return short(found)
    return name if _is_plain(name) else short_kernel(name, _WIDEST)


def _is_plain(name: str) -> bool:
    """Names of operators and calls, which lose nothing of their own: `aten::mm`, `cudaMalloc`."""
    return not re.search(r"[<( ]", name)


def summary_name(names: Sequence[str], runtime_ns: Times) -> str:
    """A name for a group: what dominates it, its share, and how many other names there are.

    Args:
        names: of the operations in the group, at least one.
        runtime_ns: of each, int64, shape (len(names),), ns.

    Example:
        >>> summary_name(["mul_", "add_", "mul_"], np.array([3, 4, 3]))
        'mul_ (60 %) and 1 other'
    """
    distinct, code = np.unique(names, return_inverse=True)
    if len(distinct) == 1:
        return f"{names[0]} ×{len(names)}"
    total = np.bincount(code, runtime_ns)
    # Of equal shares the one that comes first in time counts.
    leader = int(code[np.argmax(total[code])])
    share = 100 * total[leader] / max(total.sum(), 1)
    others = len(distinct) - 1
    return f"{distinct[leader]} ({share:.0f} %) and {others} other{'s' * (others > 1)}"


def range_name(first: str, last: str) -> str:
    """A name for numbered copies of one block.

    Example:
        >>> range_name("h.0", "h.11"), range_name("Bottleneck_3", "Bottleneck_1")
        ('h.0 … 11', 'Bottleneck_3 … 1')
    """
    return f"{first} … {re.split(r'[._]', last)[-1]}"
