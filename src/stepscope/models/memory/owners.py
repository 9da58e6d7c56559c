"""Who allocated: the user's line of a call stack, and what the memory is for."""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Codes, Ids, Ids32, Mask, Rows, Times
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

KINDS = (
    "weights",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "unknown",
    "buffers",
)
_LIBRARY = re.compile(
    r"(site|dist)-packages[/\\]|[/\\]lib[/\\]python3|[/\\]Lib[/\\](?!site)|^<|^\?\?|^$"
    r"|[/\\]torch[/\\](_|nn|optim|autograd|utils|distributed|cuda|functional|random|fx|backends)"
)
_CALLS = re.compile(r"^(forward|_call_impl)$")
_BACKWARD = re.compile(r"^(backward|_engine_run_backward)$")
_SETUP = re.compile(r"^(__init__|reset_parameters|_apply|init_weights|from_pretrained)$")
_LOADING = re.compile(r"collate|pin_memory|^fetch$")
_LAYERS = re.compile(r"nn[/\\]modules[/\\]|nn[/\\]functional\.py$|torch[/\\]functional\.py$")
_ROLES = (  # what a frame says by its file or its function; the first that matches
    ("optimizer state", re.compile(r"[/\\]optim(izer)?s?[/\\]|optimizer\.py$"), None),
    ("gradients", re.compile(r"[/\\]autograd[/\\]"), _BACKWARD),
    ("inputs", re.compile(r"[/\\]utils[/\\]data[/\\]"), _LOADING),
    ("weights", None, _SETUP),
    ("activations", _LAYERS, _CALLS),
)
_SHORT = 16  # changes of the allocator within which a temporary is released


@dataclass(frozen=True)
class Owners:
    """For each allocation who made it.

    Attributes:
        line: stacks.id of the innermost frame in the user's code, -1 where unknown, shape (n,).
        kind: position in `KINDS`, shape (n,).
    """

    line: Ids32
    kind: Codes


def find_owners(trace: Trace) -> Owners:
    """The owner of each allocation of a memory snapshot.

    What an allocation is for follows from its call stack, and for the forward, backward and
    optimizer code also from its lifetime: what is released at once is temporary.
    """
    stacks, table = trace["stacks"], trace["allocations"]
    line, role = _line_of_stacks(stacks), _role_of_stacks(stacks)
    stack = table["stack"]
    kind = np.append(role, KINDS.index("unknown"))[stack]
    kind = np.where(_short_lived(table) & (stack >= 0), KINDS.index("temporaries"), kind)
    return Owners(np.append(line, -1)[stack].astype(np.int32), kind.astype(np.int64))


def _line_of_stacks(stacks: Table) -> Ids32:
    """For each stack the innermost frame in the user's code; parents come before their callees."""
    library = stacks.text("file").where(lambda file: bool(_LIBRARY.search(file)))
    result = np.full(len(stacks), -1, np.int32)
    parents = stacks["parent"].tolist()
    for row, (parent, foreign) in enumerate(zip(parents, library.tolist(), strict=True)):
        result[row] = row if not foreign else result[parent] if parent >= 0 else -1
    return result


def _role_of_stacks(stacks: Table) -> Codes:
    """For each stack what it allocates for, by its innermost telling frame."""
    own = np.full(len(stacks), -1, np.int64)
    for name, file, function in reversed(_ROLES):
        hit = _matches(stacks, "file", file) | _matches(stacks, "function", function)
        own[hit] = KINDS.index(name)
    result = own.copy()
    unknown, activation = KINDS.index("unknown"), KINDS.index("activations")
    for row, parent in enumerate(stacks["parent"].tolist()):
        outer = result[parent] if parent >= 0 else unknown
        # A forward call inside of something more telling (an optimizer's closure) is still that
        # of the forward pass; a plain helper takes the role of its caller.
        if own[row] < 0 or (own[row] == activation and outer not in (unknown, activation)):
            result[row] = outer
    return result


def _matches(stacks: Table, column: str, pattern: re.Pattern[str] | None) -> Mask:
    if pattern is None:
        return np.zeros(len(stacks), np.bool_)
    return stacks.text(column).where(lambda text: bool(pattern.search(text)))


def _short_lived(table: Table) -> Mask:
    """Allocations that are released within a few changes of the allocator."""
    start, end = table["start_ns"], table["end_ns"]
    both = np.flatnonzero((start >= 0) & (end >= 0))
    alone = [start[(start >= 0) & (end < 0)], end[(end >= 0) & (start < 0)]]
    rank = _rank(np.concatenate([start[both], end[both], *alone]))
    short = np.zeros(len(table), np.bool_)
    short[both] = rank[len(both) : 2 * len(both)] - rank[: len(both)] <= _SHORT
    return short


def _rank(values: Times) -> Rows:
    """How many of the values are smaller, for each of them; a search for each would be slower."""
    order = np.argsort(values)
    fresh = np.append(True, np.diff(values[order]) > 0)[: len(values)]
    rank = np.empty(len(values), np.intp)
    rank[order] = np.maximum.accumulate(np.where(fresh, np.arange(len(values)), 0))
    return rank


def snapshot_lines(trace: Trace, owners: Owners) -> tuple[Ids, list[str]]:
    """Position of each allocation's line, the same for all frames of one line, and the names."""
    stacks = trace["stacks"]
    rows = zip(stacks.text("file"), stacks["line"].tolist(), stacks.text("function"), strict=True)
    names = [f"{file}:{line} {function}" for file, line, function in rows]
    first: dict[str, int] = {}
    places = [first.setdefault(name, row) for row, name in enumerate(names)]
    return np.array([*places, -1], np.int64)[owners.line], names
