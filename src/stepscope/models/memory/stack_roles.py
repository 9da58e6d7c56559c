"""What a call stack of a snapshot says by itself: the user's line, and the code that allocated."""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Codes, Ids32, Mask
from stepscope.trace.table import Table

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
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, INPUTS, TEMPORARIES, UNKNOWN = range(7)

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
    parents = stacks["parent"].tolist()
    foreign = native | file.where(lambda name: bool(_LIBRARY.search(name)))
    own, strong = _own_roles(stacks)
    # Python whose outermost frame is PyTorch's was called by a thread of autograd.
    roots = (stacks["parent"] < 0) & file.where(lambda name: bool(_TORCH.search(name))) & ~native
    rooted = roots & ((own < 0) | ~strong)
    own, strong = np.where(rooted, GRADIENTS, own), strong | rooted
    line = np.full(len(stacks), -1, np.int32)
    role = np.full(len(stacks), UNKNOWN, np.int64)
    backward = own == GRADIENTS
    for row, parent in enumerate(parents):
        outer = role[parent] if parent >= 0 else UNKNOWN
        is_inherited = own[row] < 0 or (not strong[row] and outer != UNKNOWN)
        role[row] = outer if is_inherited else own[row]
        line[row] = row if not foreign[row] else line[parent] if parent >= 0 else -1
        backward[row] |= parent >= 0 and backward[parent]
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
