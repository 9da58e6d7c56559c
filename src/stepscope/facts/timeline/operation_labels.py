"""Operation names without paths, addresses and boilerplate, distinct ones, and names for groups.

Source: HOTLINE appendix C.2 (Rename, Summarize) and figure 14.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np

from stepscope.base.arrays import Ids, Times
from stepscope.base.kernel_names import short_kernel
from stepscope.facts.annotate.range_names import range_label
from stepscope.trace.row_order import greatest_of_runs

_WIDEST = 200  # characters of a kernel's name: a box of the page has room for fewer
_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
_RULES: tuple[_Rule, ...] = (
    (re.compile(r"^<(\w+)>\(\d+\): <?([^<>]+)>?$"), lambda found: f"{found[2]} {found[1]}"),
    (re.compile(r"^(?:.*[/\\])?([^/\\]+?)\(\d+\): <?([^<>]+)>?$"), lambda found: f"{found[2]} {found[1]}"),
    (
        re.compile(r"^<built-in method (\S+) of (.+?)(?: object)?(?: at 0x[0-9a-f]+)?>$"),
        lambda found: f"{found[1]} {found[2].rpartition('.')[2]}",
    ),
    (re.compile(r"^<built-in function (\S+)>$"), lambda found: found[1]),
    (
        re.compile(r"^(?:autograd::engine::evaluate_function: |torch::autograd::)+(.+)$"),
        lambda found: found[1],
    ),
    (re.compile(r"^nn\.Module: (.+)$"), lambda found: found[1]),
    (re.compile(r"^stepscope\.module: ?(.*)$"), lambda found: found[1] or "model"),
)
_MAX_LENGTH = 40  # characters that tell names apart; a number replaces longer ones
_WORD = re.compile(r"[A-Za-z0-9_]+")


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """An event's name as briefly as it stays recognizable."""
    for pattern, short in _RULES:
        if found := pattern.match(name):
            return short(found)
    if (label := range_label(name)) != name:
        return label
    # Names of operators and calls, as `aten::mm` and `cudaMalloc`, lose nothing of their own.
    return short_kernel(name, _WIDEST) if re.search(r"^_Z|[<( ]", name) else name


def summary_names(texts: Sequence[str], text: Ids, group: Ids, runtime_ns: Times) -> list[str]:
    """A name for each group: what dominates it, its share, and how many other names there are.

    Args:
        text: which of them each operation has, shape (operations,).
        group: of each operation, ascending from 0, shape (operations,).
        runtime_ns: of each operation, shape (operations,), ns.
    """
    first = np.searchsorted(group, np.arange(group[-1] + 1))
    pairs, pair = np.unique(group * len(texts) + text, return_inverse=True)
    total = np.bincount(pair, runtime_ns)[pair]
    leader = greatest_of_runs(total, first)  # of equal shares the one that comes first in time
    columns = (
        text[leader],
        np.bincount(pairs // len(texts)),
        np.bincount(group),
        100 * total[leader] / np.maximum(np.bincount(group, runtime_ns), 1),
    )
    return [
        _summary(texts[name], distinct, count, share)
        for name, distinct, count, share in zip(*(one.tolist() for one in columns), strict=True)
    ]


def _summary(leader: str, distinct: int, count: int, share: float) -> str:
    if distinct == 1:
        return f"{leader} ×{count}"
    return f"{leader} ({share:.0f}%) and {distinct - 1} other{'s' * (distinct > 2)}"


def range_name(first: str, last: str) -> str:
    """A name for numbered copies of one block."""
    return f"{first} … {re.split(r'[._]', last)[-1]}"


def distinct_short_names(names: Collection[str]) -> dict[str, str]:
    """A short name for each name, in which those that would look the same say what differs."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(short_name(name), []).append(name)
    found: dict[str, str] = {}
    for short, members in alike.items():
        if len(members) == 1:
            found[members[0]] = short
        else:
            found.update(_told_apart(short, members))
    return found


def _told_apart(short: str, names: Sequence[str]) -> dict[str, str]:
    """The words of each name that not all have, or a number where this does not help."""
    words = [_WORD.findall(name) for name in names]
    common = set(words[0]).intersection(*words[1:])
    notes = [_note([word for word in own if word not in common]) for own in words]
    known = Counter(notes)
    return {
        name: f"{short} [{note}]" if note and known[note] == 1 else f"{short} #{number}"
        for number, (name, note) in enumerate(zip(names, notes, strict=True), 1)
    }


def _note(words: Sequence[str]) -> str:
    text = " ".join(dict.fromkeys(words))
    return text if len(text) <= _MAX_LENGTH else ""
