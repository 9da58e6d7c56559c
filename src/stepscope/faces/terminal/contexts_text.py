"""A calling-context tree as text for a terminal, the hot path marked."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.base.arrays import Ids
from stepscope.base.numbers import bar, count, ms, percent, plural, size
from stepscope.faces.terminal.output import terminal, write_text
from stepscope.facts.contexts import ContextTree, TreeMeasure, hot_path, hotspots, measure
from stepscope.facts.contexts.node_values import short_label
from stepscope.facts.summary.text_tables import plain_table

_WIDE, _VERY_WIDE = 90, 120  # columns, for bars and for times of calls
_FILE_WIDTH = 160  # columns
_PASSED = 0.005  # share of own time that a row shared with the child may hide
_LEAST_REST = 0.01  # of the total, for a row of what is left out
_CALLERS = 3  # levels shown by default
_GAP = 3  # columns between numbers
_LEAST_NAME = 28  # characters
_LEAST_CHAIN = 24  # characters of room for names passed through
_LEAST_NUMBER = 4  # characters
_BAR = ""
_STYLES = {
    "thread": "bold",
    "step": "bold",
    "module": "green",
    "python": "cyan",
    "kernel": "blue",
    "memcpy": "blue",
    "memset": "blue",
    "communication": "magenta",
    "unlinked": "yellow",
    "others": "dim",
    "runtime": "bright_black",
    "annotation": "yellow",
}


def print_contexts(
    tree: ContextTree, by: str, *, depth: int | None, least: float, bottom_up: bool, path: str | None = None
) -> None:
    console = terminal()
    if path:
        console = Console(file=io.StringIO(), width=_FILE_WIDTH, markup=False, emoji=False)
    levels = depth if depth is not None else _CALLERS if bottom_up else len(tree)
    text = _ContextsText(tree, by, levels, least, bottom_up, console.width)
    console.print(text.header(), text.table(), text.footer(), sep="\n", highlight=False)
    if path and isinstance(console.file, io.StringIO):
        write_text(Path(path), console.file.getvalue())


@dataclass
class _ContextRow:
    level: int
    cells: list[Text]
    chain: list[int] = field(default_factory=list)
    words: str = ""  # where it is of no single node


class _ContextsText:
    def __init__(
        self, tree: ContextTree, by: str, depth: int, least: float, bottom_up: bool, width: int
    ) -> None:
        self.tree, self.depth, self.least, self.width = tree, depth, least, width
        self.bottom_up = bottom_up
        self.measure: TreeMeasure = measure(tree, by)
        self.value = self.measure.inclusive
        self.whole = float(self.value[0]) or 1.0
        # The time of a whole call says more than the time of its own.
        by_call = self.measure.metric == "cpu_ns" and tree.has("call_ns")
        self.stats = tree.inclusive("call_ns" if by_call else self.measure.metric)
        self.write = _writer(self.measure)
        self.hot = set() if bottom_up else set(hot_path(tree, by))
        self.spots = set(hotspots(tree, by).tolist()) - {0}

    def header(self) -> Text:
        line = Text.assemble((self.tree.source.replace("\\", "/").rpartition("/")[2], "bold"))
        facts = [plural(len(self.tree) - 1, "context"), f"by {self.measure.meaning}"]
        return line.append(f"   {' · '.join(facts)}", "dim")

    def table(self) -> Table:
        direction = "bottom-up (callers below)" if self.bottom_up else "top-down"
        title = self.measure.meaning[0].upper() + self.measure.meaning[1:]
        rows: list[_ContextRow] = []
        self.add(rows, 0, 0)
        widths = self.fitting(rows)
        table = _table(f"{title}, {direction}", widths)
        kept = [i for i, column in enumerate(self.columns()) if column in widths]
        room = max(self.width - _width(widths), 8)
        for row in rows:
            table.add_row(self.name(row, room), *[row.cells[i] for i in kept if i < len(row.cells)])
        return table

    def columns(self) -> list[str]:
        unit, small = {"ns": (" ms", " µs")}.get(self.measure.unit, ("", ""))
        columns = [f"total{unit}", "%"]
        columns += [_BAR] if self.width >= _WIDE else []
        columns += [] if self.bottom_up else [f"own{unit}"]
        columns += ["samples" if self.sampled else "count"]
        return columns + ([f"mean{small}", f"max{small}"] if self.shows_calls else [])

    def fitting(self, rows: list[_ContextRow]) -> dict[str, int]:
        """The columns of numbers that leave room for names, and their widths."""
        columns = self.columns()
        widths = {}
        for i, column in enumerate(columns):
            lengths = (len(row.cells[i]) for row in rows if i < len(row.cells))
            widths[column] = max(_LEAST_NUMBER, len(column), *lengths)
        for column in (_BAR, *reversed(columns)):
            if self.width - _width(widths) >= _LEAST_NAME or len(widths) == 1:
                break
            widths.pop(column, None)
        return widths

    def add(self, rows: list[_ContextRow], node: int, level: int) -> None:
        """A row for a node and the descendants that take all its time, then its children."""
        chain = [node]
        while len(shown := self.shown(chain[-1])) == 1 and self.is_passed(chain[-1], shown[0]):
            chain.append(int(shown[0]))
        last = chain[-1]
        rows.append(_ContextRow(level, self.cells(last), chain))
        if level >= self.depth:
            return
        rest = self.tree.children(last)
        for child in shown:
            self.add(rows, int(child), level + 1)
        self.others(rows, np.setdiff1d(rest, shown), level + 1)

    def shown(self, node: int) -> Ids:
        below = self.tree.children(node)
        below = below[(self.value[below] >= self.least * self.whole) & (self.value[below] > 0)]
        return below[np.argsort(-self.value[below], kind="stable")]

    def is_passed(self, node: int, child: int) -> bool:
        """Whether a node has no time of its own: then it shares a row with its child."""
        return not self.bottom_up and bool(self.value[node] - self.value[child] <= _PASSED * self.value[node])

    def cells(self, node: int) -> list[Text]:
        share = float(self.value[node]) / self.whole
        own, calls = float(self.measure.own[node]), int(self.stats.count[node])
        nothing = Text("·", "dim")
        cells = [Text(self.write(float(self.value[node]))), Text(percent(share))]
        cells += [Text(f"{bar(share, 10):<10}", "green")] if self.width >= _WIDE else []
        if not self.bottom_up:
            cells.append(Text(self.write(own)) if own else nothing)
        cells.append(Text(count(calls)) if calls else nothing)
        if self.shows_calls:
            values = (self.stats.mean[node], self.stats.max[node])
            cells += [Text(self.small(value) if calls else "") for value in values]
        return cells

    @property
    def shows_calls(self) -> bool:
        return self.width >= _VERY_WIDE and bool(self.measure.unit) and not self.sampled

    @property
    def sampled(self) -> bool:
        """Whether the measure was sampled: then each value is the time between two samples."""
        return self.measure.metric.startswith("sampled_")

    def small(self, value: float) -> str:
        """The value of one call: of time in microseconds."""
        if np.isnan(value):
            return "?"
        return f"{value / 1000:,.1f}" if self.measure.unit == "ns" else self.write(float(value))

    def name(self, row: _ContextRow, room: int) -> Text:
        text = Text(" " * min(2 * row.level, max(room - _LEAST_NAME, 0)))
        if not row.chain:
            return text.append(row.words, "dim")
        last = row.chain[-1]
        kind = self.tree.nodes.text("kind")[last] or ""
        marks = self.marks(last)
        room = max(room - len(text) - len(marks), 8)
        if len(row.chain) > 1 and room >= _LEAST_CHAIN:
            names = [short_label(self.tree, node, room // 2 - 4) for node in row.chain[:-1]]
            text.append(passed := _passed(names, room // 2), "dim")
            room -= len(passed)
        style = "bold red" if last in self.spots else _STYLES.get(kind, "")
        text.append(short_label(self.tree, last, max(room, 8)), style)
        return text.append(marks, "magenta")

    def marks(self, node: int) -> str:
        backward = self.tree.nodes.text("via")[node] == "backward"
        return " ↩" * backward + " ◀" * (node in self.hot and node > 0)

    def others(self, rows: list[_ContextRow], hidden: Ids, level: int) -> None:
        """One row for all nodes that are too small for a row each."""
        hidden = hidden[self.value[hidden] > 0]
        total = float(self.value[hidden].sum())
        if total / self.whole < _LEAST_REST:
            return
        cells = [Text(number, "dim") for number in (self.write(total), percent(total / self.whole))]
        rows.append(_ContextRow(level, cells, words=f"… {len(hidden)} more"))

    def footer(self) -> Text:
        marks = ["◀ hot path", "↩ backward of the call above it"] if not self.bottom_up else []
        text = Text("\n" + " · ".join([*marks, "red: at least 10 % of the total in itself"]), "dim")
        if self.measure.name == "cpu" and self.tree.event_node is None:
            text.append(
                "\nThis counts operators only; to include Python: "
                "stepscope run --contexts --sample-real 200 …",
                "dim",
            )
        for note in self.tree.notes:
            times = f" ({note.count}×)" if note.count > 1 else ""
            text.append(f"\n! {note.message}{times}", "yellow")
        return text


def _width(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * len(widths)


def _passed(names: list[str], room: int) -> str:
    """Names of nodes without time of their own: the first and the last ones, as room allows."""
    separator = " › "
    line = separator.join(names) + separator
    if len(line) <= room:
        return line
    kept: list[str] = []
    for name in reversed(names[1:]):
        if len(separator.join([names[0], "…", name, *kept, ""])) > room:
            break
        kept.insert(0, name)
    return separator.join([names[0], "…", *kept, ""])


def _writer(found: TreeMeasure) -> Callable[[float], str]:
    if found.unit == "ns":
        return lambda value: ms(value / 1e6)
    if found.unit == "B":
        return lambda value: size(int(value))
    return lambda value: f"{value:,.0f}"


def _table(title: str, heads: dict[str, int]) -> Table:
    table = plain_table(title)
    table.add_column("", no_wrap=True)
    for head, width in heads.items():
        table.add_column(head, justify="right" if head else "left", no_wrap=True, width=width)
    return table
