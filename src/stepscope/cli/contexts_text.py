"""A calling-context tree as text for a terminal, the hot path marked."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.cli.terminal import terminal
from stepscope.cli.writing import write_text
from stepscope.contexts import ContextTree, Measure, hot_path, hotspots, measure
from stepscope.contexts.labels import short_label
from stepscope.summary.numbers import bar, count, ms, percent, plural, size

_WIDE, _VERY_WIDE = 90, 120
_FILE_WIDTH = 160
_PASSED = 0.005
_LEAST_REST = 0.01
_CALLERS = 3
_GAP = 3
_LEAST_NAME = 28
_STYLES = {
    "thread": "bold", "step": "bold", "module": "green", "python": "cyan", "kernel": "blue",
    "memcpy": "blue", "memset": "blue", "communication": "magenta", "unlinked": "yellow",
    "others": "dim", "runtime": "bright_black", "annotation": "yellow",
}  # fmt: skip


def print_contexts(
    tree: ContextTree, by: str, *, depth: int | None, least: float, bottom_up: bool,
    path: str | None = None,
) -> None:  # fmt: skip
    """Print a tree.

    Args:
        tree: as it is to be shown.
        by: the measure to go by.
        depth: how many levels are shown; by default all, and three upside down.
        least: what has a smaller share of the whole is told in one line, 0 to 1.
        bottom_up: whether the tree is upside down.
        path: a file to write to instead.
    """
    console = Console(file=io.StringIO(), width=_FILE_WIDTH) if path else terminal()
    levels = depth if depth is not None else _CALLERS if bottom_up else len(tree)
    text = _Text(tree, by, levels, least, bottom_up, console.width)
    console.print(Group(*text.parts()), highlight=False)
    if path and isinstance(console.file, io.StringIO):
        write_text(Path(path), console.file.getvalue())


class _Text:
    def __init__(
        self, tree: ContextTree, by: str, depth: int, least: float, bottom_up: bool, width: int
    ) -> None:
        self.tree, self.depth, self.least, self.width = tree, depth, least, width
        self.bottom_up = bottom_up
        self.measure: Measure = measure(tree, by)
        self.value = self.measure.inclusive
        self.whole = float(self.value[0]) or 1.0
        # What one call takes says more than what a call leaves to itself.
        by_call = self.measure.metric == "cpu_ns" and tree.has("call_ns")
        self.stats = tree.inclusive("call_ns" if by_call else self.measure.metric)
        self.write = _writer(self.measure)
        self.hot = set() if bottom_up else set(hot_path(tree, by))
        self.spots = set(hotspots(tree, by).tolist()) - {0}

    def parts(self) -> Iterator[RenderableType]:
        yield self.header()
        yield self.table()
        yield self.footer()

    def header(self) -> Text:
        name = self.tree.source.replace("\\", "/").rpartition("/")[2]
        line = Text.assemble((name, "bold"))
        facts = [plural(len(self.tree) - 1, "context"), f"by {self.measure.meaning}"]
        return line.append(f"   {' · '.join(facts)}", "dim")

    def table(self) -> Table:
        direction = "by its callers" if self.bottom_up else "by its calls"
        what = self.measure.meaning[0].upper() + self.measure.meaning[1:]
        table = _table(f"{what}, {direction}", self.heads)
        self.add(table, 0, 0)
        return table

    @cached_property
    def heads(self) -> dict[str, int]:
        """The columns of numbers and their widths."""
        unit, small = {"ns": (" ms", " µs")}.get(self.measure.unit, ("", ""))
        heads = {f"total{unit}": 8, "%": 4}
        heads |= {"": 10} if self.width >= _WIDE else {}
        heads |= {} if self.bottom_up else {f"own{unit}": 8}
        heads |= {"samples" if self.sampled else "count": 7}
        return heads | ({f"mean{small}": 8, f"max{small}": 9} if self.tells_samples else {})

    @cached_property
    def room(self) -> int:
        """The width of the names."""
        return max(self.width - sum(self.heads.values()) - _GAP * len(self.heads), 24)

    def add(self, table: Table, node: int, level: int) -> None:
        """A row for a node, with those below it that it is passed through, and its children."""
        chain = [node]
        while len(shown := self.shown(chain[-1])) == 1 and self.is_passed(chain[-1], shown[0]):
            chain.append(int(shown[0]))
        last = chain[-1]
        self.row(table, chain, level)
        if level >= self.depth:
            return
        rest = self.tree.children(last)
        for child in shown:
            self.add(table, int(child), level + 1)
        self.others(table, np.setdiff1d(rest, shown), level + 1)

    def shown(self, node: int) -> NDArray[np.int64]:
        """The children that are large enough, the largest first."""
        below = self.tree.children(node)
        below = below[(self.value[below] >= self.least * self.whole) & (self.value[below] > 0)]
        return below[np.argsort(-self.value[below], kind="stable")]

    def is_passed(self, node: int, child: int) -> bool:
        """Whether a node hands on all it has: then it shares a line with its child."""
        return not self.bottom_up and bool(
            self.value[node] - self.value[child] <= _PASSED * self.value[node]
        )

    def row(self, table: Table, chain: list[int], level: int) -> None:
        last = chain[-1]
        share = float(self.value[last]) / self.whole
        cells: list[RenderableType] = [self.name(chain, level)]
        cells += [self.write(float(self.value[last])), percent(share)]
        cells += [Text(f"{bar(share, 10):<10}", "green")] if self.width >= _WIDE else []
        if not self.bottom_up:
            own = float(self.measure.own[last])
            cells.append(self.write(own) if own else Text("·", "dim"))
        told = int(self.stats.count[last])
        cells.append(count(told) if told else Text("·", "dim"))
        if self.tells_samples:
            samples = (self.stats.mean[last], self.stats.max[last])
            cells += [self.small(one) if told else "" for one in samples]
        table.add_row(*cells)

    @property
    def tells_samples(self) -> bool:
        """Whether there is room, and use, for what single calls are like."""
        return self.width >= _VERY_WIDE and bool(self.measure.unit) and not self.sampled

    @property
    def sampled(self) -> bool:
        """Whether the measure was sampled: then each is as long as the time between two samples."""
        return self.measure.metric.startswith("sampled_")

    def small(self, value: float) -> str:
        """One sample's value: of time in microseconds."""
        if np.isnan(value):
            return "?"
        return f"{value / 1000:,.1f}" if self.measure.unit == "ns" else self.write(float(value))

    def name(self, chain: list[int], level: int) -> Text:
        last = chain[-1]
        kind = self.tree.nodes.text("kind")[last] or ""
        text = Text(self.indent(level))
        marks = self.marks(last)
        room = max(self.room - len(text) - len(marks), 12)
        if len(chain) > 1:
            names = [short_label(self.tree, node, max(room // 2 - 4, 8)) for node in chain[:-1]]
            text.append(passed := _passed(names, room // 2), "dim")
            room -= len(passed)
        style = "bold red" if last in self.spots else _STYLES.get(kind, "")
        text.append(short_label(self.tree, last, max(room, 8)), style)
        return text.append(marks, "magenta")

    def indent(self, level: int) -> str:
        """No deeper than leaves room for a name: else the numbers would be cut."""
        return " " * min(2 * level, max(self.room - _LEAST_NAME, 0))

    def marks(self, node: int) -> str:
        """What is to be said of a node beside its name."""
        backward = self.tree.nodes.text("via")[node] == "backward"
        return " ↩" * backward + " ◀" * (node in self.hot and node > 0)

    def others(self, table: Table, hidden: NDArray[np.int64], level: int) -> None:
        """One row for the nodes that are too small for one of their own."""
        hidden = hidden[self.value[hidden] > 0]
        total = float(self.value[hidden].sum())
        if total / self.whole < _LEAST_REST:
            return
        words = Text(f"{self.indent(level)}… {len(hidden)} more", "dim")
        table.add_row(
            words, Text(self.write(total), "dim"), Text(percent(total / self.whole), "dim")
        )

    def footer(self) -> Text:
        marks = ["◀ hot path", "↩ backward of the call above it"] if not self.bottom_up else []
        text = Text("\n" + " · ".join([*marks, "red: takes a tenth itself"]), "dim")
        if self.measure.name == "cpu" and self.tree.event_node is None:
            text.append("\nOnly operators are in it; Python too: "
                        "stepscope run --contexts --sample-real 200 …", "dim")  # fmt: skip
        for note in self.tree.notes:
            text.append(f"\n! {note.message} ({note.count} of them)", "yellow")
        return text


def _passed(names: list[str], room: int) -> str:
    """Names of nodes that hand on all they have: the first and the last ones, as room allows."""
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


def _writer(found: Measure) -> Callable[[float], str]:
    if found.unit == "ns":
        return lambda value: ms(value / 1e6)
    if found.unit == "B":
        return lambda value: size(int(value))
    return lambda value: f"{value:,.0f}"


def _table(title: str, heads: dict[str, int]) -> Table:
    """A table of names, and of numbers in columns of given widths, without lines."""
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, header_style="dim",
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    for head, width in heads.items():
        table.add_column(head, justify="right" if head else "left", no_wrap=True, width=width)
    return table
