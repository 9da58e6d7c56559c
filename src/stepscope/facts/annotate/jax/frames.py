"""Python frames in which compiled operations were traced, and which of them optimizers have.

The stack of an operation begins at the script. What is above the compiled function is the path of
the call that compiled it, of which later calls need not have come. Within a loop XLA writes the
frames above it once more: a stack that returns to the line where it began goes on from there.

An update of an optimizer has no transformation in its scope. It is traced in a library of
optimizers, or below a function whose name says so.

Source: the packages optax, flax (nnx/training, training), equinox, jaxopt and keras.
"""

import re
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.jax.scopes import program_names
from stepscope.trace.nesting import is_inside
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|stepscope/record|stepscope/capture)/"
)


def is_users(file: str) -> bool:
    """Whether a file is the user's: of no installed package, and not of the recorder.

    Example:
        >>> is_users("/home/me/train.py"), is_users("/venv/lib/python3.11/site-packages/a.py")
        (True, False)
    """
    return bool(file) and not file.startswith("<") and not _LIBRARY.search(file)


def frames_of_events(trace: Trace) -> Ids:
    """The frame of the largest origin of each event, a row of `frames`, -1 if unknown."""
    origins = trace["origins"]
    order = np.lexsort((-origins["share"], origins["first"]))
    first, place = np.unique(origins["first"][order], return_index=True)
    of_group = np.full(len(origins) + 1, -1, np.int64)  # at its first origin; the last is for none
    of_group[first] = origins["frame"][order[place]]
    return of_group[trace.events["origin"]]


# -- frames from the compiled function down

# The folder had another name when the recordings in `benchmarks/gpu/results` were made.
_RECORDER = re.compile(r"stepscope/(record|capture)/")
_RUNNER = tuple(f"stepscope/{name}/script_runner.py" for name in ("record", "capture"))  # below the script


class FrameRow(NamedTuple):
    """A frame of the trace's table `frames`; unknown texts are empty."""

    above: int
    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it is: function, file and line."""
        return self.function, self.file, self.line

    @property
    def name(self) -> str:
        """The function's name without the class or function around it."""
        return self.function.rpartition(".")[2]


def frame_rows(frames: Table) -> list[FrameRow]:
    """The rows of the table `frames`."""
    texts = frames.text("function"), frames.text("file")
    columns = zip(frames["parent"].tolist(), *texts, frames["line"].tolist(), strict=True)
    return [FrameRow(above, name or "", file or "", line) for above, name, file, line in columns]


def frames_below_call(trace: Trace) -> tuple[Ids, Ids]:
    """The outer frame of each frame within the compiled function, and the frame itself; else -1.

    Rows of `frames`, shape (frames,) each. Of several frames that are one, all have the first of
    them as the frame itself.
    """
    rows = frame_rows(trace["frames"])
    programs = set(program_names(trace["origins"].text("scope")).values)
    inside: list[bool] = []
    chains: list[tuple[int, int, int]] = []  # the first frame of each, the last but one and the last, else -1
    known: dict[tuple[int, str, str, int], int] = {}
    for number, row in enumerate(rows):
        is_inside = row.above >= 0 and inside[row.above]
        begins = row.name in programs and not is_inside
        is_first = begins or row.above < 0 or rows[row.above].file.endswith(_RUNNER)
        inside.append(begins or is_inside)
        first, before, last = (-1, -1, -1) if is_first else chains[row.above]
        if first >= 0 and row.place == rows[first].place:
            first, before, last = -1, -1, -1  # the stack, once more
        if not _RECORDER.search(row.file) or row.file.endswith(_RUNNER):
            before, last = last, known.setdefault((last, *row.place), number)
            first = last if first < 0 else first
        chains.append((first, before, last))
    _, outer_row, kept = np.array(chains, np.int64).reshape(-1, 3).T
    outer, below = np.full(len(rows), -1), outer_row >= 0
    outer[kept[below]] = outer_row[below]
    return outer, kept


# -- frames of optimizers

_FILE = re.compile(
    r"/(?:optax/(?:_src/(?!loss)|contrib/|transforms/|schedules/|tree_utils/|projections/)"
    r"|flax/(?:nnx/)?training/(?:optimizer|train_state)\.py$|equinox/_update\.py$|jaxopt/_src/"
    r"|keras/src/optimizers/|jax/example_libraries/optimizers\.py$)"
)
_FUNCTION = re.compile(
    r"(?:^|\.)(?:apply_(?:gradients?|grads?|updates?)|optimi[sz]er_(?:step|update)"
    r"|(?:sgd|adam|adamw|adagrad|rmsprop|lamb|lion)_(?:step|update))$"
)


def in_optimizer(trace: Trace) -> Mask:
    """Whether the largest part of each event was traced in an optimizer, bool, shape (events,)."""
    frames = trace["frames"]
    own = [bool(_FILE.search(row.file) or _FUNCTION.search(row.function)) for row in frame_rows(frames)]
    inside = is_inside(frames["parent"], np.array(own, np.bool_))
    return np.append(inside, False)[frames_of_events(trace)]
