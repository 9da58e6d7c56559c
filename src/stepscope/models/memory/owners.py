"""Who allocated what a snapshot holds: the user's line, and what the memory is for.

A call stack says by itself which code allocated. What that was for follows from the release as well: what
backward releases was kept for it, and what backward or an optimizer makes and releases itself is
temporary. What was there before the history has no stack; where its sizes are those of the
gradients, it is the weights and the optimizer state.
"""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Codes, Ids, Ids32, Mask, Rows
from stepscope.models.memory.caching_allocator import BLOCK
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import begins_run, place_in_group, places_among
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
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, INPUTS, TEMPORARIES, UNKNOWN, BUFFERS = range(len(KINDS))
KEPT = (WEIGHTS, BUFFERS, GRADIENTS, OPTIMIZER)  # by training, from step to step
# What forward makes and what is computed from it: what checkpointing and smaller batches reduce.
ACTIVE = (ACTIVATIONS, TEMPORARIES)

# Frames of C and C++: sources, libraries and the interpreter itself (torch/csrc/profiler/unwind
# writes `??` for what it cannot resolve, the library in its modes `fast` and `dladdr`).
_NATIVE = re.compile(
    r"^\?\?|^$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inc|inl|s|rs|pxi|dll|pyd|exe|dylib)$|\.so(\.[\d.]+)?$"
    r"|[/\\]bin[/\\]python[\d.]*$",
    re.IGNORECASE,
)
_LIBRARY = re.compile(
    r"(site|dist)-packages[/\\]|[/\\]lib[/\\]python3|[/\\]Lib[/\\](?!site)|[/\\]Python3\d+[/\\]lib[/\\]"
    r"|^<(?!ipython-input|stdin>|command-)|[/\\]torchinductor_"
    r"|[/\\]torch[/\\](_|nn|optim|autograd|utils|distributed|cuda|functional|random|fx|backends|amp)"
)
_TORCH = re.compile(r"[/\\]torch[/\\]")
_LAYERS = re.compile(r"nn[/\\]modules[/\\]|nn[/\\]functional\.py$|torch[/\\]functional\.py$")
# Of each role: the file, the function, and whether it holds inside of code with another role, as
# a closure holds inside of `Optimizer.step`. The first row that matches a frame decides.
_ROLES = (
    (WEIGHTS, None, re.compile(r"^(_?unshard\w*|foreach_all_gather\w*|_alloc_padded_\w*)$"), True),
    (GRADIENTS, None, re.compile(r"^(_post_backward\w*|foreach_reduce\w*|_ddp_init_helper)$"), True),
    (ACTIVATIONS, None, re.compile(r"^(forward|_(wrapped_)?call_impl|closure|\w+ing_step)$"), True),
    (TEMPORARIES, re.compile(r"nn[/\\]utils[/\\]clip_grad|[/\\]amp[/\\]grad_scaler"), None, True),
    (OPTIMIZER, re.compile(r"[/\\]optim(izer)?s?[/\\]|optimizer\.py$"), None, True),
    (GRADIENTS, re.compile(r"[/\\]autograd[/\\](?!function\.py)"), re.compile(r"^backward$"), True),
    (
        GRADIENTS,
        None,
        re.compile(r"^_engine_run_backward$|^torch::autograd::(Engine|Node|generated|\w+Grad)\b|^c10d::Red"),
        True,
    ),
    (
        INPUTS,
        re.compile(r"[/\\]utils[/\\]data[/\\]"),
        re.compile(
            r"collate|pin_memory|^fetch$|^(get_batch|send_to_device|_?prepare_inputs?)$|\w+_to_device$"
        ),
        True,
    ),
    (
        WEIGHTS,
        None,
        re.compile(r"^(__init__|reset_parameters|_apply|_?init_weights|from_pretrained|\w*load_state_dict)$"),
        False,
    ),
    (ACTIVATIONS, _LAYERS, None, False),
    (INPUTS, None, re.compile(r"^torch::autograd::THPVariable_(to|cuda)\b"), False),
)


@dataclass(frozen=True)
class StackRoles:
    """What each stack of the table `stacks` says; every array has shape (n,)."""

    line: Ids32  # stacks.id of the innermost Python frame in the user's code, -1 where there is none
    role: Codes  # position in `KINDS`
    backward: Mask  # whether autograd called it, in its own thread or in the caller's
    has_native: bool  # whether the file holds frames of C++, as with PyTorch's default


def find_roles(stacks: Table) -> StackRoles:
    """What the stacks say; parents come before their callees."""
    file = stacks.text("file")
    native = file.where(lambda name: bool(_NATIVE.search(name)))
    foreign = native | file.where(lambda name: bool(_LIBRARY.search(name)))
    own, strong = _own_roles(stacks)
    # Python whose outermost frame is PyTorch's was called by a thread of autograd.
    roots = (stacks["parent"] < 0) & file.where(lambda name: bool(_TORCH.search(name))) & ~native
    rooted = roots & ((own < 0) | ~strong)
    own, strong = np.where(rooted, GRADIENTS, own), strong | rooted
    role = np.full(len(stacks), UNKNOWN, np.int64)
    for row, parent in enumerate(stacks["parent"].tolist()):
        outer = role[parent] if parent >= 0 else UNKNOWN
        is_inherited = own[row] < 0 or (not strong[row] and outer != UNKNOWN)
        role[row] = outer if is_inherited else own[row]
    line = inherit(stacks["parent"], np.where(foreign, -1, np.arange(len(stacks))))
    backward = inherit(stacks["parent"], np.where(own == GRADIENTS, 1, -1)) > 0
    return StackRoles(line, role, backward, bool(native.any()))


def _own_roles(stacks: Table) -> tuple[Codes, Mask]:
    """What each frame says by its file or its function, -1 where nothing, and how strongly."""
    own = np.full(len(stacks), -1, np.int64)
    strong = np.zeros(len(stacks), np.bool_)
    for role, file, function, is_strong in reversed(_ROLES):
        hit = _matches(stacks, "file", file) | _matches(stacks, "function", function)
        own[hit], strong[hit] = role, is_strong
    return own, strong


def _matches(stacks: Table, column: str, pattern: re.Pattern[str] | None) -> Mask:
    if pattern is None:
        return np.zeros(len(stacks), np.bool_)
    return stacks.text(column).where(lambda text: bool(pattern.search(text)))


_SHORT = 16  # changes of the allocator within which a temporary is released
_NEVER = np.iinfo(np.int64).max
_LEAST_MATCHED = 0.9  # of the gradients' bytes; chosen: less is a coincidence of sizes
_MOST_STATES = 3  # tensors of state for each weight: Adam has two, AMSGrad three


def find_owners(trace: Trace) -> tuple[Codes, Ids]:
    """Who made each allocation of a memory snapshot: its position in `KINDS`, and stacks.id of the
    innermost Python frame in the user's code, -1 where unknown; shape (n,) each."""
    roles, table = find_roles(trace["stacks"]), trace["allocations"]
    stack = table["stack"]
    kind, backward = np.append(roles.role, UNKNOWN)[stack], np.append(roles.backward, False)[stack]
    bare = _made_by_autograd(table, roles)
    kind[bare], backward[bare] = GRADIENTS, True
    short = _short_lived(table) & (stack >= 0)
    for device in np.unique(table["device"]).tolist():
        rows = np.flatnonzero(table["device"] == device)
        kind[rows] = _by_release(table.take(rows), kind[rows], backward[rows], short[rows])
        _name_what_was_there(trace, device, kind)
        _name_replaced(table, device, kind)
    return kind.astype(np.int64), np.append(roles.line, -1)[stack].astype(np.int64)


def _made_by_autograd(table: Table, roles: StackRoles) -> Mask:
    """Allocations of the history without a stack, where others have Python's and one ran backward.

    Only a thread that runs no Python has no Python frame, and of PyTorch's threads autograd's
    allocate. With frames of C++ no stack is empty.
    """
    seen = roles.role[table["stack"][table["stack"] >= 0]]
    ran = not roles.has_native and bool(np.isin(seen, (GRADIENTS, OPTIMIZER)).any())
    return (table["start_ns"] >= 0) & (table["stack"] < 0) & ran


def _by_release(table: Table, kind: Codes, backward: Mask, short: Mask) -> Codes:
    """The kinds on one device, with what the moment of the release says."""
    start, made = table["start_ns"], np.flatnonzero(table["start_ns"] >= 0)
    made = made[np.argsort(start[made], kind="stable")]
    if not len(made):
        return kind
    end = np.where(table["end_ns"] >= 0, table["end_ns"], _NEVER)
    phase = np.where(backward, GRADIENTS, np.where(kind == OPTIMIZER, OPTIMIZER, UNKNOWN))
    opens = np.flatnonzero(begins_run(phase[made]))
    phases, first = phase[made][opens], start[made][opens]
    last = start[made][np.append(opens[1:], len(made)) - 1]
    following = np.append(first[1:], _NEVER)
    run, released_in = (np.searchsorted(first, time, side="right") - 1 for time in (start, end))
    # A gradient may be released right after the last allocation of backward; an optimizer
    # releases its temporaries when it returns.
    limit = np.where(kind == GRADIENTS, last[run], following[run])
    has_phase = (start >= 0) & np.isin(kind, (GRADIENTS, OPTIMIZER))
    by_backward = (phases[released_in] == GRADIENTS) & (end <= last[released_in]) & (run < released_in)
    kind = np.where(by_backward & (kind == UNKNOWN), ACTIVATIONS, kind)
    passes = np.where(has_phase, end < limit, short & ~(by_backward & (kind == ACTIVATIONS)))
    return np.where(passes, TEMPORARIES, kind)


def _name_what_was_there(trace: Trace, device: int, kind: Codes) -> None:
    """Name the blocks that outlive a whole history of training, by the sizes of its gradients.

    Each weight with a gradient has one block of the gradient's size, and as many more as the
    optimizer keeps for it; where all sizes agree on that number, `kind` gets both.
    """
    table = trace["allocations"]
    mine = table["device"] == device
    size = _requested(trace, device)
    kept = np.flatnonzero(mine & (table["start_ns"] < 0) & (table["end_ns"] < 0) & (kind == UNKNOWN))
    gradients = np.flatnonzero(mine & (kind == GRADIENTS) & (table["start_ns"] >= 0))
    sizes, needed = _of_one_backward(table, gradients, size)
    place = places_among(sizes, size[kept])
    kept, place = kept[place >= 0], place[place >= 0]
    count = np.bincount(place, minlength=len(sizes))
    whole = float(sizes @ needed)
    for states in range(_MOST_STATES + 1):
        agrees = count == (1 + states) * needed
        if whole and float(sizes[agrees] @ needed[agrees]) >= _LEAST_MATCHED * whole:
            chosen = agrees[place]
            number = place_in_group(place)
            kind[kept[chosen & (number < needed[place])]] = WEIGHTS
            kind[kept[chosen & (number >= needed[place])]] = OPTIMIZER


def _name_replaced(table: Table, device: int, kind: Codes) -> None:
    """Name what was there and was released, where what has its size and stays has one purpose."""
    mine, was_there = table["device"] == device, table["start_ns"] < 0
    stays = mine & ~was_there & np.isin(kind, (WEIGHTS, GRADIENTS, OPTIMIZER))
    replaced = np.flatnonzero(mine & was_there & (table["end_ns"] >= 0) & (kind == UNKNOWN))
    sizes, place = np.unique(table["bytes"][mine & ~was_there & (kind != TEMPORARIES)], return_inverse=True)
    of = kind[mine & ~was_there & (kind != TEMPORARIES)]
    least, most = np.full(len(sizes) + 1, UNKNOWN), np.full(len(sizes) + 1, -1)
    np.minimum.at(least, place, of)
    np.maximum.at(most, place, of)
    where = places_among(sizes, table["bytes"][replaced])  # the last row of `least` and `most` is of none
    one = (least[where] == most[where]) & np.isin(least[where], np.unique(kind[stays]))
    kind[replaced[one]] = least[where[one]]


def _of_one_backward(table: Table, rows: Rows, size: Ids) -> tuple[Ids, Ids]:
    """The distinct sizes of gradients, ascending, and how many of each there are at most at once."""
    end = np.where(table["end_ns"][rows] >= 0, table["end_ns"][rows], np.inf)
    life = Lifetimes(size[rows], table["start_ns"][rows].astype(np.float64), end, rows, rows)
    sizes, count = np.unique(life.bytes[life.alive(life.peak()[1])], return_counts=True)
    return sizes.astype(np.int64), count


def _requested(trace: Trace, device: int) -> Ids:
    """The size that was asked for, rounded up as the allocator does, of each allocation."""
    table, blocks = trace["allocations"], trace["blocks"]
    size = table["bytes"].astype(np.int64)
    here = np.flatnonzero(trace["segments"]["device"][blocks["segment"]] == device)
    here = here[blocks["requested_bytes"][here] > 0]
    old = np.flatnonzero((table["device"] == device) & (table["start_ns"] < 0) & (table["end_ns"] < 0))
    place = places_among(blocks["address"][here], table["address"][old])
    size[old[place >= 0]] = blocks["requested_bytes"][here[place[place >= 0]]]
    return -(-size // BLOCK) * BLOCK


def _short_lived(table: Table) -> Mask:
    """Allocations that are released within a few changes of the allocator."""
    start, end = table["start_ns"], table["end_ns"]
    both = np.flatnonzero((start >= 0) & (end >= 0))
    alone = [start[(start >= 0) & (end < 0)], end[(end >= 0) & (start < 0)]]
    moments = np.concatenate([start[both], end[both], *alone])
    rank = np.searchsorted(np.sort(moments), moments)
    short = np.zeros(len(table), np.bool_)
    short[both] = rank[len(both) : 2 * len(both)] - rank[: len(both)] <= _SHORT
    return short


def snapshot_lines(trace: Trace, frame: Ids) -> tuple[Ids, list[str]]:
    """Position of each allocation's line, the same for all frames of one line, and the names."""
    stacks = trace["stacks"]
    rows = zip(stacks.text("file"), stacks["line"].tolist(), stacks.text("function"), strict=True)
    names = [f"{file}:{line} {function}" for file, line, function in rows]
    first: dict[str, int] = {}
    places = [first.setdefault(name, row) for row, name in enumerate(names)]
    return np.array([*places, -1], np.int64)[frame], names
