"""The Python frames of compiled operations, from the compiled function down.

The stack of an operation begins at the script. What is above the compiled function is the path of
the call that compiled it, of which later calls need not have come. Within a loop or another nested
computation XLA writes the frames above it once more: a stack that comes back to the line where it
began goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepscope.annotate.names.named_scopes import scope_of
from stepscope.arrays import Ids
from stepscope.trace.trace import Trace

_RUNNER = "stepscope/capture/script_runner.py"  # `stepscope run` is below the script
_RECORDER = "stepscope/capture/"


class _Row(NamedTuple):
    """A frame of the trace's table `frames`."""

    above: int
    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        return self.function, self.file, self.line


def frames_below_call(trace: Trace) -> tuple[Ids, Ids]:
    """The outer frame of each frame within the compiled function, and the frame itself; else -1.

    Args:
        trace: with the tables `frames` and `origins`.

    Returns:
        Rows of `frames`, int64, shape (frames,) each. Of several frames that are one, all have the
        first of them as the frame itself.
    """
    rows = list(_rows(trace))
    programs = {scope_of(value).program for value in trace["origins"].text("scope").values}
    inside: list[bool] = []
    chains: list[list[int]] = []
    known: dict[tuple[int, str, str, int], int] = {}
    for number, row in enumerate(rows):
        is_inside = row.above >= 0 and inside[row.above]
        begins = row.function.rpartition(".")[2] in programs and not is_inside
        is_first = begins or row.above < 0 or rows[row.above].file.endswith(_RUNNER)
        inside.append(begins or is_inside)
        chain = [] if is_first else chains[row.above]
        if chain and row.place == rows[chain[0]].place:
            chain = []  # the stack, once more
        if not _is_of_recorder(row.file):
            outer_row = chain[-1] if chain else -1
            chain = [*chain, known.setdefault((outer_row, *row.place), number)]
        chains.append(chain)
    outer, kept = np.full(len(rows), -1), np.full(len(rows), -1)
    for number, chain in enumerate(chains):
        kept[number] = chain[-1] if chain else -1
        if len(chain) > 1:
            outer[chain[-1]] = chain[-2]
    return outer, kept


def _rows(trace: Trace) -> Iterator[_Row]:
    table = trace["frames"]
    columns = zip(
        table["parent"].tolist(), table.text("function"), table.text("file"),
        table["line"].tolist(), strict=True,
    )  # fmt: skip
    return (_Row(above, name or "", file or "", line) for above, name, file, line in columns)


def _is_of_recorder(file: str) -> bool:
    return _RECORDER in file and not file.endswith(_RUNNER)
