"""The model tree, the longest kernels and the efficiency of a step as text for a terminal."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.base.kernel_names import short_kernel
from stepscope.base.numbers import count, ms, operations, percent, rounded
from stepscope.facts.summary.facts import Efficiency, Kernel, ModuleNode, Summary, busiest_ms
from stepscope.facts.summary.text_tables import STAGE_STYLE, WIDE, bar_for, plain_table, stage_words

_ROOM_FOR_BARS = 90  # columns of the terminal
_LEAST_SHARE = 0.03  # of the time of all modules: those with less share a row
_MOST_NODES = 64  # of one level that are shown: more than one screen
_LEAST_REST = 0.01  # of the time: a smaller rest has no row
_ONE = 1.05  # at once: nearly always one, so that a sum is as good as a mean
_IN_MODULES = ("prefill", "decode", "prefill_decode", "evaluation", "checkpointing")
_WITHOUT_MODULES = [stage for stage in STAGE_STYLE if stage not in _IN_MODULES]
_ADAPTERS = "/site-packages/peft/"
_ROOM_FOR_PEAK = 110  # columns of the terminal
_MOST = 10  # kernels in the table
_OVER_PEAK = 1.005  # of the peak: what does not round to 100 %
_ABOVE_PEAK_NOTE = "over 100%: fewer operations than counted (Winograd), or inputs served from cache"
_PRECISIONS = {"half": "16 bits", "tf32": "TF32", "fp32": "FP32"}
_COUNTED_BY = {"xla": "as XLA counts them", "shapes": "from the shapes in XLA's programs"}
_LEAST_KNOWN = 0.5  # of the time of the work: with less, a total would be that of a part; as for the MFU
_ALL = 0.995  # of the time: what rounds to 100 %
Row = tuple[str, float, float, float | None, str]


def modules_table(summary: Summary, depth: int, width: int) -> Table:
    """The module tree as a table: device time if there is a device, else CPU time."""
    return _ModulesTable(summary, depth, width).table


class _ModulesTable:
    def __init__(self, summary: Summary, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        self.on_device = bool(summary.devices)
        self.bars = width >= _ROOM_FOR_BARS
        self.parameters = width >= WIDE and summary.parameters is not None
        self.roots, self.stages = summary.modules, summary.stages
        self.at_once = summary.at_once if summary.at_once > _ONE else 1.0
        self.total = sum(map(self.cost, self.roots)) or 1.0
        self.outside = sum(map(self.outside_of, self.roots)) >= _LEAST_REST * summary.steps.mean_ms
        heads = ["", "~", "forward>", "backward>", *(["outside>"] if self.outside else [])]
        heads += ["of step>", *([""] if self.bars else [])]
        heads += ["parameters>"] if self.parameters else []
        where = "device" if self.on_device else "wall"
        self.table = plain_table(f"Model, {where} ms per step", *heads)
        self.step_ms = summary.steps.mean_ms or 1.0
        self.add_nodes(summary.modules)
        self.add_rest(busiest_ms(summary.devices) if summary.devices else summary.steps.mean_ms)
        if self.at_once > 1:
            lanes = "devices" if summary.devices[1:] else "streams" if self.on_device else "threads"
            note = f"means over {lanes}: {self.at_once:.3g} work at once"
            before = f"{self.table.caption}; " if self.table.caption else ""
            self.table.caption = Text(f"{before}{note}", "dim")

    def add_nodes(self, nodes: Sequence[ModuleNode], level: int = 0, deep: int = 0) -> None:
        """Rows for the nodes that matter, and one row for the rest.

        A container (ModuleList) and what LoRA puts around a model are levels of the tree but do not
        count towards the depth.
        """
        hidden: list[ModuleNode] = []
        limit = sorted(map(self.cost, nodes))[-_MOST_NODES] if len(nodes) > _MOST_NODES else 0.0
        for place, node in enumerate(nodes):
            is_small = level and self.cost(node) / self.total < _LEAST_SHARE
            if is_small or self.cost(node) < limit or place - len(hidden) >= _MOST_NODES:
                hidden.append(node)
                continue
            self.add_node(node, level)
            only_holds = node.children and not node.calls  # as a ModuleList
            is_wrapper = _ADAPTERS in node.file and len(node.children) == 1  # of the user's model
            below = deep + (not only_holds and not is_wrapper)
            if below < self.depth:
                self.add_nodes(node.children, level + 1, below)
        rest = sum(map(self.cost, hidden))
        if rest / self.total >= _LEAST_REST and len(hidden) < len(nodes):
            self.add_share(f"{'  ' * level}… {len(hidden)} more", rest)

    def add_rest(self, work_ms: float) -> None:
        rest = work_ms - sum(map(self.cost, self.roots))
        if rest / self.step_ms >= _LEAST_REST:
            self.add_share("no module", rest)
            self.table.caption = Text(self.without_module(), "dim")

    def without_module(self) -> str:
        """The stages in which work belongs to no module, the longest first; empty on a device."""
        if self.on_device:
            return ""
        inside = sum(map(self.outside_of, self.roots))
        spent = {stage.stage: stage.cpu_ms for stage in self.stages}
        spent["other"] = spent.get("other", 0.0) - max(
            0.0, inside - spent.get("evaluation", 0.0) - spent.get("checkpointing", 0.0)
        )
        forward = sum(node.forward_cpu_ms for node in self.roots) / self.at_once
        spent["forward"] = spent.get("forward", 0.0) - forward
        spent["backward"] = spent.get("backward", 0.0) - (self.total - forward - inside)
        shares = {stage: spent.get(stage, 0.0) / self.step_ms for stage in _WITHOUT_MODULES}
        shown = sorted((share, stage) for stage, share in shares.items() if share >= _LEAST_SHARE)
        parts = (f"{stage_words(stage)} {percent(share)}" for share, stage in reversed(shown))
        return ", ".join(["no module: " * bool(shown) + next(parts, ""), *parts])

    def add_share(self, label: str, rest_ms: float) -> None:
        empty = [""] * (4 if self.outside else 3)
        self.table.add_row(Text(label, "dim"), *empty, Text(percent(rest_ms / self.step_ms), "dim"))

    def add_node(self, node: ModuleNode, level: int) -> None:
        forward = (node.forward_device_ms if self.on_device else node.forward_cpu_ms) / self.at_once
        name = Text("  " * level).append(node.name or "model", "" if level else "bold")
        if node.count > 1:
            name.append(f" × {node.count}", "yellow")
        cost, outside = self.cost(node), self.outside_of(node)
        share = cost / self.step_ms
        self.table.add_row(
            name,
            Text(node.kind, "dim", no_wrap=True, overflow="ellipsis"),
            ms(forward),
            ms(cost - forward - outside),
            *([ms(outside)] if self.outside else []),
            percent(share),
            *([bar_for(share, "green", self.width)] if self.bars else []),
            *([Text("" if node.parameters is None else count(node.parameters), "dim")] * self.parameters),
        )

    def outside_of(self, node: ModuleNode) -> float:
        return (node.outside_device_ms if self.on_device else node.outside_cpu_ms) / self.at_once

    def cost(self, node: ModuleNode) -> float:
        return (node.device_ms if self.on_device else node.cpu_ms) / self.at_once


def kernels_parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    """A table of the longest kernels, a note on those above peak, and shares by kind."""
    shown = summary.kernels[:_MOST]
    peak = width >= _ROOM_FOR_PEAK and any(kernel.of_peak is not None for kernel in shown)
    yield _kernels_table(f"Longest {summary.kernels_are}, per step", shown, width, peak)
    if peak and any((kernel.of_peak or 0.0) >= _OVER_PEAK for kernel in shown):
        yield Text(_ABOVE_PEAK_NOTE, "dim")
    yield _kinds_line(summary.kinds)


def _kernels_table(title: str, kernels: Sequence[Kernel], width: int, peak: bool) -> Table:
    wide = width >= WIDE
    heads = ["", *(["kind"] if wide else []), "stage", "count>", "ms>", "of work>"]
    heads += ["of peak>", ""] if peak else []
    table = plain_table(title, *heads)
    room = width - (60 if wide else 40) - (17 if peak else 0)
    for kernel in kernels:
        stage = stage_words(kernel.stage)
        table.add_row(
            short_kernel(kernel.name, room),
            *([Text(kernel.kind, "dim")] if wide else []),
            Text(stage, STAGE_STYLE.get(kernel.stage, "dim")),
            rounded(kernel.count, 4),
            ms(kernel.total_ms),
            percent(kernel.share),
            *([percent(kernel.of_peak) if kernel.of_peak is not None else ""] if peak else []),
            *([Text(kernel.limit, "dim")] if peak else []),
        )
    return table


def _kinds_line(times: Mapping[str, float]) -> Text:
    whole = sum(times.values()) or 1.0
    shares = {kind: time / whole for kind, time in times.items()}
    kinds = (f"{kind} {percent(share)}" for kind, share in shares.items() if share > 0.005)
    return Text("by kind: " + " · ".join(kinds), "dim")


def efficiency_parts(found: Efficiency) -> Iterator[RenderableType]:
    """A table of rates, and a line that says what they cover."""
    scale, unit = (1.0, "TFLOP/s") if (found.busy_tflops or found.tflops) >= 1 else (1e3, "GFLOP/s")
    peaks = ["of peak>", ""] if found.busy_utilization is not None else []
    title = "FLOPs per step" if found.known >= _LEAST_KNOWN else "FLOP rate"
    table = plain_table(title, "", ">", f"{unit}>", *peaks)
    for label, flops, rate, share, name in _rows(found):
        cells = [label, operations(flops) if flops else "", ms(rate * scale)]
        of_peak = [percent(share), name] if share is not None else ["", ""]
        table.add_row(*cells, *(of_peak if peaks else []))
    if table.rows:
        yield table
    yield Text(" · ".join(_notes(found)), "dim")


def _rows(found: Efficiency) -> Iterator[Row]:
    if found.known >= _LEAST_KNOWN:
        yield from _rows_of_step(found)
    if found.busy_tflops is not None:
        yield "while counted work runs", 0, found.busy_tflops, found.busy_utilization, ""


def _rows_of_step(found: Efficiency) -> Iterator[Row]:
    repeated = found.repeated_flops / found.flops
    own = found.flops - found.repeated_flops
    yield "whole step", own, found.tflops * (1 - repeated), found.mfu, "MFU"
    if repeated:
        yield "with recomputation", found.flops, found.tflops, found.hfu, "HFU"


def _notes(found: Efficiency) -> Iterator[str]:
    counted_by = _COUNTED_BY.get(found.counted_by)
    what = "counted: matrix products, convolutions and attention"
    yield f"{what}, {counted_by}" if counted_by else what
    if found.known < _ALL:
        few = ", too little for those of the step" if found.known < _LEAST_KNOWN else ""
        yield f"FLOPs are known for {percent(found.known)} of their time{few}"
    if found.gpu and found.peak_tflops:
        rates = (f"{rate:g} TFLOP/s in {_PRECISIONS[name]}" for name, rate in found.peak_tflops.items())
        yield f"{found.gpu}: {', '.join(rates)}"
