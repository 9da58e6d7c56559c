"""The module tree with its costs as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stepscope.summary.facts import Node, Summary, busiest_ms
from stepscope.summary.numbers import count, ms, percent
from stepscope.summary.text_tables import WIDE, bar_for, plain_table, stage_words

_ROOM_FOR_BARS = 90
_LEAST_SHARE = 0.03
_LEAST_REST = 0.01
_WITHOUT_MODULES = (
    "data_loading", "transfer", "forward", "loss", "zero_grad", "backward", "optimizer", "other",
)  # fmt: skip
_ADAPTERS = "/site-packages/peft/"


def modules_table(summary: Summary, depth: int, width: int) -> Table:
    """The module tree as a table: device time if there is a device, else CPU time.

    Args:
        summary: facts of one rank.
        depth: how many levels are shown.
        width: of the terminal.
    """
    return _Modules(summary, depth, width).table


class _Modules:
    def __init__(self, summary: Summary, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        self.on_device = bool(summary.devices)
        self.bars = width >= _ROOM_FOR_BARS
        self.parameters = width >= WIDE and summary.parameters is not None
        self.roots, self.stages = summary.modules, summary.stages
        self.total = sum(map(self.cost, self.roots)) or 1.0
        self.outside = sum(map(self.outside_of, self.roots)) >= _LEAST_REST * summary.steps.mean_ms
        heads = ["", "~", "forward>", "backward>", *(["outside>"] if self.outside else [])]
        heads += ["of step>", *([""] if self.bars else [])]
        heads += ["parameters>"] if self.parameters else []
        where = "device" if self.on_device else "CPU"
        self.table = plain_table(f"Model, {where} ms per step", *heads)
        self.step_ms = summary.steps.mean_ms or 1.0
        self.add_nodes(summary.modules)
        self.add_rest(_work_ms(summary))

    def add_nodes(self, nodes: Sequence[Node], level: int = 0, deep: int = 0) -> None:
        """Rows for the nodes that matter, and one row for the rest.

        A container (ModuleList) and what LoRA puts around a model are levels of the tree but do not
        count towards the depth.
        """
        hidden = []
        for node in nodes:
            if level and self.cost(node) / self.total < _LEAST_SHARE:
                hidden.append(node)
                continue
            self.add_node(node, level)
            below = deep + (not _only_holds(node) and not _is_wrapper(node))
            if below < self.depth:
                self.add_nodes(node.children, level + 1, below)
        rest = sum(map(self.cost, hidden))
        if rest / self.total >= _LEAST_REST and len(hidden) < len(nodes):
            label = f"{'  ' * level}… {len(hidden)} more"
            share = percent(rest / self.step_ms)
            self.add_share(label, share)

    def add_rest(self, work_ms: float) -> None:
        """A row for the work that belongs to no module."""
        rest = work_ms - sum(map(self.cost, self.roots))
        if rest / self.step_ms >= _LEAST_REST:
            share = percent(rest / self.step_ms)
            self.add_share("no module", share)
            self.table.caption = Text(self.without_module(), "dim")
            self.table.caption_justify = "left"

    def without_module(self) -> str:
        """The stages in which work belongs to no module, the longest first; empty on a device."""
        if self.on_device:
            return ""
        inside = sum(map(self.outside_of, self.roots))
        spent = {stage.stage: stage.cpu_ms for stage in self.stages}
        spent["other"] = spent.get("other", 0.0) - max(
            0.0, inside - spent.get("evaluation", 0.0) - spent.get("checkpointing", 0.0)
        )
        forward = sum(node.forward_cpu_ms for node in self.roots)
        spent["forward"] = spent.get("forward", 0.0) - forward
        spent["backward"] = spent.get("backward", 0.0) - (self.total - forward - inside)
        shares = {stage: spent.get(stage, 0.0) / self.step_ms for stage in _WITHOUT_MODULES}
        shown = sorted((share, stage) for stage, share in shares.items() if share >= _LEAST_SHARE)
        parts = (f"{stage_words(stage)} {percent(share)}" for share, stage in reversed(shown))
        return ", ".join(["no module: " * bool(shown) + next(parts, ""), *parts])

    def add_share(self, label: str, share: str) -> None:
        """A row without times of its own."""
        empty = [""] * (4 if self.outside else 3)
        self.table.add_row(Text(label, "dim"), *empty, Text(share, "dim"))

    def add_node(self, node: Node, level: int) -> None:
        forward = node.forward_device_ms if self.on_device else node.forward_cpu_ms
        name = Text("  " * level).append(node.name or "model", "" if level else "bold")
        if node.count > 1:
            name.append(f" × {node.count}", "yellow")
        cost, outside = self.cost(node), self.outside_of(node)
        share = cost / self.step_ms
        self.table.add_row(
            name, Text(node.kind, "dim", no_wrap=True, overflow="ellipsis"),
            ms(forward), ms(cost - forward - outside),
            *([ms(outside)] if self.outside else []), percent(share),
            *([bar_for(share, "green", self.width)] if self.bars else []),
            *([Text(count(node.parameters or 0), "dim")] if self.parameters else []),
        )  # fmt: skip

    def outside_of(self, node: Node) -> float:
        """Time outside of training: a rollout, an evaluation."""
        return node.outside_device_ms if self.on_device else node.outside_cpu_ms

    def cost(self, node: Node) -> float:
        return node.device_ms if self.on_device else node.cpu_ms


def _only_holds(node: Node) -> bool:
    """Whether a module holds others and is never called itself, as a ModuleList."""
    return bool(node.children) and not node.calls


def _is_wrapper(node: Node) -> bool:
    """Whether a class of the library peft holds the user's model."""
    return _ADAPTERS in node.file and len(node.children) == 1


def _work_ms(summary: Summary) -> float:
    """All work of a step: busy time of the device that computes longest, or the step itself."""
    return busiest_ms(summary.devices) if summary.devices else summary.steps.mean_ms
