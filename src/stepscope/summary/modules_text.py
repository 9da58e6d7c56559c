"""The model tree with its costs as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stepscope.summary.facts import Summary
from stepscope.summary.numbers import count, ms, percent
from stepscope.summary.tables import WIDE, bar_for, plain_table
from stepscope.summary.tree import Node

_ROOM_FOR_BARS = 90
_LEAST_SHARE = 0.03
_LEAST_REST = 0.01


def modules_table(summary: Summary, depth: int, width: int) -> Table:
    """The tree as a table, costs by the device where there is one.

    Args:
        summary: of a rank.
        depth: how deep it is shown.
        width: of the terminal.
    """
    return _Modules(summary, depth, width).table


class _Modules:
    def __init__(self, summary: Summary, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        self.on_device = bool(summary.devices)
        self.bars = width >= _ROOM_FOR_BARS
        self.parameters = width >= WIDE and summary.parameters is not None
        self.total = sum(map(self.cost, summary.modules)) or 1.0
        heads = ["", "~", "forward>", "backward>", ">", *([""] if self.bars else [])]
        heads += ["parameters>"] if self.parameters else []
        where = "device" if self.on_device else "CPU"
        self.table = plain_table(f"Model, {where} ms a step", *heads)
        self.add_nodes(summary.modules)

    def add_nodes(self, nodes: Sequence[Node], level: int = 0, deep: int = 0) -> None:
        """Rows for the nodes that matter, and one for the others together.

        A list of modules is a level of the tree, but none of the depth that was asked for.
        """
        hidden = []
        for node in nodes:
            if level and self.cost(node) / self.total < _LEAST_SHARE:
                hidden.append(node)
                continue
            self.add_node(node, level)
            below = deep + (not _only_holds(node))
            if below < self.depth:
                self.add_nodes(node.children, level + 1, below)
        share = sum(map(self.cost, hidden)) / self.total
        if share >= _LEAST_REST and len(hidden) < len(nodes):
            words = f"{'  ' * level}… {len(hidden)} more"
            self.table.add_row(Text(words, "dim"), "", "", "", Text(percent(share), "dim"))

    def add_node(self, node: Node, level: int) -> None:
        forward = node.forward_device_ms if self.on_device else node.forward_cpu_ms
        name = Text("  " * level).append(node.name or "model", "" if level else "bold")
        if node.count > 1:
            name.append(f" × {node.count}", "yellow")
        cost = self.cost(node)
        share = cost / self.total
        self.table.add_row(
            name, Text(node.kind, "dim", no_wrap=True, overflow="ellipsis"),
            ms(forward), ms(cost - forward), percent(share),
            *([bar_for(share, "green", self.width)] if self.bars else []),
            *([Text(count(node.parameters or 0), "dim")] if self.parameters else []),
        )  # fmt: skip

    def cost(self, node: Node) -> float:
        return node.device_ms if self.on_device else node.cpu_ms


def _only_holds(node: Node) -> bool:
    """Whether a module holds others and is never called itself, as a ModuleList."""
    return bool(node.children) and not node.calls
