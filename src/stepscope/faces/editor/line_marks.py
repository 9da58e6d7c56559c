"""The costs of a file at the current positions of its lines: marks, hover texts, hints, lenses.

Results belong to the text that was measured. While it is edited they follow lines that only moved;
a line that was changed itself keeps its place but is stale, and is fresh again once undone. Nothing
is tracked from edit to edit: two texts are compared, so no sequence of edits can lead astray.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from lsprotocol import types as lsp

from stepscope.base.numbers import ms, percent, size
from stepscope.faces.editor.measuring import FileCosts
from stepscope.models.batch_size.breakdown import LineBreakdown

_MOST_LINES = 3000  # of what differs; beyond it an alignment takes longer than a pause in typing
_LEAST_SHARE = 0.001  # of the step; what takes less is no mark, but stays in the hover
_MOST_ROWS = 8  # of a table in a hover, so that it fits above or below its line
_Row = tuple[str, str, str]
_Part = tuple[str, float]  # a module or an operator, and its ms


class MappedLine(NamedTuple):
    """A measured line in the current text."""

    line: int  # its number from 0
    stale: bool  # whether it reads differently now


def map_lines(measured: Sequence[str], current: Sequence[str]) -> dict[int, MappedLine]:
    """Each measured line, by its number from 0, in the current text; without those that were deleted."""
    head = _common(measured, current)
    tail = _common(measured[head:][::-1], current[head:][::-1])
    lines = {line: MappedLine(line, False) for line in range(head)}
    shift = len(current) - len(measured)
    for line in range(len(measured) - tail, len(measured)):
        lines[line] = MappedLine(line + shift, False)
    old, new = measured[head : len(measured) - tail], current[head : len(current) - tail]
    for line, place in _between(old, new).items():
        lines[line + head] = MappedLine(place.line + head, place.stale)
    return dict(sorted(lines.items()))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of common lines at the beginning of two texts."""
    shortest = min(len(one), len(other))
    return next((line for line in range(shortest) if one[line] != other[line]), shortest)


def _between(old: Sequence[str], new: Sequence[str]) -> dict[int, MappedLine]:
    if max(len(old), len(new)) > _MOST_LINES:
        return _changed(range(len(old)), range(len(new)))
    lines: dict[int, MappedLine] = {}
    for kind, begin, end, to, to_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            lines |= {begin + row: MappedLine(to + row, False) for row in range(end - begin)}
        elif kind == "replace":
            lines |= _changed(range(begin, end), range(to, to_end))
    return lines


def _changed(old: range, new: range) -> dict[int, MappedLine]:
    """Changed lines keep their order; those without a counterpart are gone."""
    return {line: MappedLine(now, True) for line, now in zip(old, new, strict=False)}


@dataclass(frozen=True)
class LineMark:
    """The cost of one line, in the text as it is now."""

    line: int  # number from 0
    stale: bool  # whether the line reads differently than it was measured
    cost: LineBreakdown  # what was measured
    share: float  # of the step's time, 0 to 1

    @property
    def bytes(self) -> int:
        """Weights that the line creates, and activations that it keeps for backward."""
        return self.cost.weights_bytes + self.cost.activations_bytes

    @property
    def shown(self) -> bool:
        return self.share >= _LEAST_SHARE or bool(self.bytes)

    @property
    def text(self) -> str:
        """`12.30 ms · 34% · 45.2 MB`, in brackets where stale; memory alone for what only holds."""
        timed = self.share >= _LEAST_SHARE
        parts = [f"{ms(self.cost.ms)} ms", percent(self.share)] if timed else []
        if self.bytes:
            parts.append(size(self.bytes))
        text = " · ".join(parts)
        return f"({text})" if self.stale else text


def marks_of(costs: FileCosts, current: Sequence[str]) -> list[LineMark]:
    """The marks of a file by line; those of deleted lines are left out."""
    now = map_lines(costs.text, current)
    marks = (
        LineMark(*now[line - 1], cost, cost.ms / costs.step_ms if costs.step_ms else 0.0)
        for line, cost in costs.lines.items()
        if line - 1 in now
    )
    return sorted(marks, key=lambda mark: mark.line)


def hover_text(mark: LineMark) -> str:
    """Markdown: a heading, forward and backward, memory, and where the time goes; names of modules are
    code, so nothing in them is formatted."""
    return "\n".join([_head(mark), "", *_tables(mark.cost)])


def _head(mark: LineMark) -> str:
    cost = mark.cost
    held = {"weights": cost.weights_bytes, "activations": cost.activations_bytes}
    parts = {
        f"**{ms(cost.ms)} ms** per step, {percent(mark.share)} of it": cost.ms,
        "*Stale: this line has changed since it was measured.*": mark.stale,
        f"forward {ms(cost.forward_ms)} ms, backward {ms(cost.backward_ms)} ms": cost.ms,
        ", ".join(f"{name} {size(count)}" for name, count in held.items() if count): mark.bytes,
    }
    return "\n\n".join(text for text, shown in parts.items() if shown)


def _tables(cost: LineBreakdown) -> Iterator[str]:
    modules = [(part.path, part.ms) for part in cost.modules]
    operators = [(part.name, part.ms) for part in cost.operators]
    for title, parts in (("module", modules), ("operator", operators)):
        if parts:
            rows = [_row(*part, cost.ms) for part in _shown(parts)]
            yield from _aligned([(title, "per step", ""), *rows])
            yield ""


def _aligned(rows: Sequence[_Row]) -> Iterator[str]:
    """A table, the first row its head; aligned as text too, which is how a terminal shows it."""
    name, *numbers = (max(map(_width, column)) for column in zip(*rows, strict=True))
    lines = [_line(row, name, numbers) for row in rows]
    rule = "".join(f"{'-' * (width + 1)}:|" for width in numbers)
    yield from (lines[0], f"|:{'-' * (name + 1)}|{rule}", *lines[1:])


def _line(row: _Row, name: int, numbers: Sequence[int]) -> str:
    first, *rest = row
    cells = [f"{text:>{width}}" for text, width in zip(rest, numbers, strict=True)]
    return f"| {' | '.join([first + ' ' * (name - _width(first)), *cells])} |"


def _width(cell: str) -> int:
    """Without what marks code, which is not shown."""
    return len(cell.replace("`", ""))


def _shown(parts: list[_Part]) -> list[_Part]:
    rest = parts[_MOST_ROWS:]
    if len(rest) < 2:
        return parts
    return [*parts[:_MOST_ROWS], (f"{len(rest)} more", sum(each for _, each in rest))]


def _row(name: str, own_ms: float, whole_ms: float) -> _Row:
    name = (name or "the model itself").replace("`", "'").replace("|", "\\|")
    return f"`{name}`", f"{ms(own_ms)} ms", percent(own_ms / whole_ms if whole_ms else 0.0)


def inlay_hints(
    marks: Iterable[LineMark], lines: Sequence[str], codec: Any, wanted: lsp.Range
) -> list[lsp.InlayHint]:
    return [
        lsp.InlayHint(
            position=lsp.Position(mark.line, codec.client_num_units(lines[mark.line])),
            label=mark.text,
            tooltip=lsp.MarkupContent(lsp.MarkupKind.Markdown, hover_text(mark)),
            padding_left=True,
        )
        for mark in marks
        if mark.shown and wanted.start.line <= mark.line <= wanted.end.line
    ]


def code_lenses(marks: Iterable[LineMark]) -> list[lsp.CodeLens]:
    return [
        lsp.CodeLens(
            range=lsp.Range(lsp.Position(mark.line, 0), lsp.Position(mark.line, 0)),
            command=lsp.Command(title=mark.text, command=""),
        )
        for mark in marks
        if mark.shown
    ]
