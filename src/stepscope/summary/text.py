"""A summary as text for a terminal: what a tired person wants to read, the bottleneck first."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.annotate.kernel_names import short_kernel
from stepscope.summary.devices import Device
from stepscope.summary.efficiency_text import efficiency_parts
from stepscope.summary.facts import StepTimes, Summary
from stepscope.summary.kernels import Kernel
from stepscope.summary.numbers import bar, count, ms, percent, plural, size
from stepscope.summary.tables import plain_table as _table
from stepscope.summary.tree import Node

_WIDE = 100
_WIDEST = 110
_ROOM_FOR_BARS = 72
_LEAST_SHARE = 0.03
_LEAST_REST = 0.01
_KERNELS = 10
_SKEWED = 0.1
_OVER_PEAK = 1.005
_UNEVEN = 3
_STAGE_STYLE = {
    "data_loading": "yellow", "transfer": "cyan", "forward": "green", "loss": "magenta",
    "zero_grad": "bright_black", "backward": "blue", "optimizer": "red", "other": "bright_black",
}  # fmt: skip
_TIME_STYLE = {
    "computing": "green", "communication": "magenta", "data": "yellow", "synchronisation": "cyan",
    "host": "red", "launch": "bright_black",
}  # fmt: skip
_TIME_WORDS = {
    "computing": "computing",
    "communication": "only communicating",
    "data": "idle, waiting for data",
    "synchronisation": "idle at synchronisations",
    "host": "idle, host bound",
    "launch": "idle after launch",
}
_TIME_HEADS = ("computing", "comm. only", "data", "sync", "host", "launch")
_SIDE = {"cpu": "CPU"}
_EVIDENCE = {
    "pattern": "told by a pattern of operators",
    "whole_trace": "nothing marks a step: this is all of the trace",
}


def print_report(console: Console, summaries: Sequence[Summary], depth: int = 4) -> None:
    """Print a report.

    Args:
        console: where to; its width decides what there is room for.
        summaries: one a rank; the details are those of the rank that computes longest.
        depth: how deep the model tree is shown.
    """
    console.print(Group(*_Report(summaries, depth, console.width).parts()), highlight=False)


def picture(summaries: Sequence[Summary], depth: int = 4) -> str:
    """The report as an SVG picture, as a terminal of 110 columns shows it."""
    console = Console(record=True, width=110, file=io.StringIO())
    print_report(console, summaries, depth)
    return console.export_svg(title=f"stepscope report {summaries[0].source.rpartition('/')[2]}")


class _Report:
    def __init__(self, summaries: Sequence[Summary], depth: int, width: int) -> None:
        self.all, self.depth, self.width = summaries, depth, width
        self.main = max(summaries, key=_computing)
        self.bar_width = 20 if width >= 120 else 12 if width >= _WIDE else 8

    def parts(self) -> Iterator[RenderableType]:
        yield self.header()
        yield self.step()
        if len(self.all) > 1:
            yield self.ranks()
        yield self.stages()
        yield from (self.device(device) for device in self.main.devices)
        if self.main.efficiency:
            yield from efficiency_parts(self.main.efficiency)
        if self.main.modules:
            yield self.model()
        if self.main.kernels:
            yield self.kernels()
            if self.tells_of_peak and any(_is_over_peak(one) for one in self.shown):
                yield self.over_peak()
            yield self.kinds()
        yield self.footer()

    # -- head

    def header(self) -> Text:
        summary, ranks = self.main, max(self.main.world_size, len(self.all))
        names = sorted({device.name for device in summary.devices if device.name})
        steps = len(summary.steps.numbers) + (summary.steps.warm_up is not None)
        facts = [summary.framework, *names, plural(steps, "step")]
        facts += [f"rank {summary.rank} of {ranks}"] if ranks > 1 else []
        line = Text.assemble((summary.source.rpartition("/")[2], "bold"))
        line.append("   " + " · ".join(fact for fact in facts if fact), "dim")
        if summary.capture.get("outcome", "complete") != "complete":
            line.append(f"\n{summary.capture.get('message', '')}", "yellow")
        return line

    def step(self) -> Text:
        steps = self.main.steps
        text = Text.assemble("\n", ("Step ", "bold"), (ms(steps.mean_ms), "bold"), " ms")
        if len(steps.numbers) > 1:
            spread = f"{ms(steps.min_ms)} to {ms(steps.max_ms)}, ± {ms(steps.std_ms)}"
            spread += f", median {ms(steps.median_ms)}" if _is_skewed(steps) else ""
            text.append(f"   {spread} over {len(steps.numbers)} steps", "dim")
        if steps.evidence in _EVIDENCE:
            text.append(f"   {_EVIDENCE[steps.evidence]}", "yellow")
        if steps.warm_up:
            left_out = f"step {steps.warm_up.step} ({ms(steps.warm_up.ms)} ms)"
            text.append(f"\nwithout {left_out}, which warms up", "dim")
        if step_is := self.main.capture.get("step_is"):
            text.append(f"\na step is {step_is}", "dim")
        style = _TIME_STYLE.get(self.main.verdict.bound_by, "green")
        return text.append("\n▶ ", style).append(self.main.verdict.sentence, "bold")

    def ranks(self) -> Table:
        heads = (f"{head}>" for head in ("step", *_TIME_HEADS))
        table = _table("Ranks, ms a step", "rank", *heads)
        for one in self.all:
            device = max(one.devices, key=lambda device: device.computing_ms, default=None)
            times = _times(device) if device else {}
            mark = " ▼" if one is self.main else ""
            cells = (ms(times.get(key, 0.0)) if device else "–" for key in _TIME_STYLE)
            table.add_row(f"{one.rank}{mark}", ms(one.steps.mean_ms), *cells)
        table.caption = Text("data, sync, host, launch: idle. ▼ told in detail below", "dim")
        table.caption_justify = "left"
        return table

    # -- stages and devices

    def stages(self) -> Table:
        device = bool(self.main.devices)
        bars = [""] * (self.width >= _ROOM_FOR_BARS or not device)
        heads = ["", "CPU ms>", ">", *bars, *(["device ms>", *bars] if device else []), "bound by"]
        table = _table("Stages, a step", *heads)
        times = [time for one in self.main.stages for time in (one.cpu_ms, one.device_ms)]
        longest = max(times, default=0.0) or 1.0
        for one in self.main.stages:
            style = _STAGE_STYLE[one.stage]
            name = Text(one.stage.replace("_", " "), style)
            cells: list[RenderableType] = [name, ms(one.cpu_ms), percent(one.share)]
            cells += [self.bar(one.cpu_ms / longest, style) for _ in bars]
            if device:
                cells += [ms(one.device_ms)]
                cells += [self.bar(one.device_ms / longest, style) for _ in bars]
            table.add_row(*cells, Text(_SIDE.get(one.bound_by, one.bound_by), "dim"))
        return table

    def device(self, device: Device) -> Table:
        name = f"Device {device.device}" if len(self.main.devices) > 1 else "Device"
        table = _table(f"{name}, a step", "", "ms>", ">", "")
        window = device.window_ms or 1.0
        for key, time in _times(device).items():
            if time / window >= 0.001:
                words = Text(_TIME_WORDS[key], _TIME_STYLE[key])
                share = time / window
                table.add_row(words, ms(time), percent(share), self.bar(share, _TIME_STYLE[key]))
        if device.overlapped_ms / window >= 0.001:
            words = Text("communicating while computing", "dim")
            table.add_row(words, ms(device.overlapped_ms), percent(device.overlapped_ms / window))
        return table

    # -- model

    def model(self) -> Table:
        where = "device" if self.on_device else "CPU"
        heads = ["", "~", "forward>", "backward>", ">", *([""] if self.width >= 90 else [])]
        heads += ["parameters>"] if self.counts_parameters else []
        table = _table(f"Model, {where} ms a step", *heads)
        total = sum(map(self.cost, self.main.modules)) or 1.0
        self.add_nodes(table, self.main.modules, total)
        return table

    def add_nodes(
        self, table: Table, nodes: Iterable[Node], total: float, level: int = 0, deep: int = 0
    ) -> None:
        """Rows for the nodes that matter, and one for the others together.

        A list of modules is a level of the tree, but none of the depth that was asked for.
        """
        nodes, hidden = list(nodes), []
        for node in nodes:
            if level and self.cost(node) / total < _LEAST_SHARE:
                hidden.append(node)
                continue
            self.add_node(table, node, total, level)
            below = deep + (not _only_holds(node))
            if below < self.depth:
                self.add_nodes(table, node.children, total, level + 1, below)
        share = sum(map(self.cost, hidden)) / total
        if share >= _LEAST_REST and len(hidden) < len(nodes):
            words = f"{'  ' * level}… {len(hidden)} more"
            table.add_row(Text(words, "dim"), "", "", "", Text(percent(share), "dim"))

    def add_node(self, table: Table, node: Node, total: float, level: int) -> None:
        forward = node.forward_device_ms if self.on_device else node.forward_cpu_ms
        name = Text("  " * level).append(node.name or "model", "" if level else "bold")
        if node.count > 1:
            name.append(f" × {node.count}", "yellow")
        cost = self.cost(node)
        table.add_row(
            name, Text(node.kind, "dim", no_wrap=True, overflow="ellipsis"),
            ms(forward), ms(cost - forward), percent(cost / total),
            *([self.bar(cost / total, "green")] if self.width >= 90 else []),
            *([Text(count(node.parameters or 0), "dim")] if self.counts_parameters else []),
        )  # fmt: skip

    @property
    def counts_parameters(self) -> bool:
        return self.width >= _WIDE and self.main.parameters is not None

    @property
    def on_device(self) -> bool:
        return bool(self.main.devices)

    def cost(self, node: Node) -> float:
        return node.device_ms if self.on_device else node.cpu_ms

    # -- kernels and the rest

    def kernels(self) -> Table:
        wide, peak = self.width >= _WIDE, self.tells_of_peak
        heads = ["", *(["kind"] if wide else []), "stage", "count>", "ms>", ">"]
        heads += ["of peak>", ""] if peak else []
        table = _table(f"Longest {self.main.kernels_are}, a step", *heads)
        room = self.width - (60 if wide else 40) - (17 if peak else 0)
        for kernel in self.shown:
            stage = kernel.stage.replace("_", " ")
            table.add_row(
                short_kernel(kernel.name, room), *([Text(kernel.kind, "dim")] if wide else []),
                Text(stage, _STAGE_STYLE.get(kernel.stage, "dim")),
                f"{kernel.count:.4g}", ms(kernel.total_ms), percent(kernel.share),
                *(_of_peak(kernel) if peak else []),
            )  # fmt: skip
        return table

    @property
    def tells_of_peak(self) -> bool:
        """Whether there is room to tell how near kernels come to the device's rates, and any do."""
        return self.width >= _WIDEST and any(one.of_peak is not None for one in self.shown)

    @property
    def shown(self) -> list[Kernel]:
        """The kernels that are told one by one."""
        return self.main.kernels[:_KERNELS]

    def over_peak(self) -> Text:
        """Why a kernel can be faster than the device."""
        return Text(
            "over 100%: fewer operations than counted (Winograd), or inputs still in the cache",
            "dim",
        )

    def kinds(self) -> Text:
        whole = sum(self.main.kinds.values()) or 1.0
        shares = {kind: time / whole for kind, time in self.main.kinds.items()}
        kinds = (f"{kind} {percent(share)}" for kind, share in shares.items() if share > 0.005)
        return Text("by kind: " + " · ".join(kinds), "dim")

    def footer(self) -> Text:
        summary = self.main
        facts = []
        if summary.data_wait_ms:
            facts.append(f"Data loading takes {ms(summary.data_wait_ms)} ms of each step.")
        if summary.parameters is not None:
            bytes_ = size(summary.parameter_bytes or 0)
            facts.append(f"The model has {count(summary.parameters)} parameters ({bytes_}).")
        for device, peak in summary.peak_memory_bytes.items():
            facts.append(f"Peak memory on {device}: {size(peak)}.")
        text = Text("".join(f"\n{fact}" for fact in facts))
        steps = summary.steps
        if steps.max_ms > _UNEVEN * steps.min_ms > 0:
            text.append("\n! ", "yellow").append(
                f"the longest step takes {steps.max_ms / steps.min_ms:.3g} times the shortest, and "
                "figures are means: look at one with --step, or record more of them"
            )
        for warning in self.warnings():
            text.append("\n! ", "yellow").append(str(warning["message"]))
            text.append(f" ({warning['count']} times)" if warning["count"] > 1 else "", "dim")
        return text

    def warnings(self) -> list[dict[str, Any]]:
        """Of the one rank that is told, but for how its run ended, which the head says."""
        ended = self.main.capture.get("outcome")
        return [one for one in self.main.warnings if one["code"] != ended]

    def bar(self, share: float, style: str) -> Text:
        return Text(bar(share, self.bar_width), style)


def _of_peak(kernel: Kernel) -> tuple[str, Text]:
    share = "" if kernel.of_peak is None else percent(kernel.of_peak)
    return share, Text(kernel.limit, "dim")


def _is_over_peak(kernel: Kernel) -> bool:
    return kernel.of_peak is not None and kernel.of_peak >= _OVER_PEAK


def _is_skewed(steps: StepTimes) -> bool:
    """Whether a few steps decide the mean."""
    return abs(steps.mean_ms - steps.median_ms) > _SKEWED * steps.median_ms


def _only_holds(node: Node) -> bool:
    """Whether a module holds others and is never called itself, as a ModuleList."""
    return bool(node.children) and not node.calls


def _computing(summary: Summary) -> float:
    return max((device.computing_ms for device in summary.devices), default=0.0)


def _times(device: Device) -> dict[str, float]:
    times = {"computing": device.computing_ms, **device.idle_ms}
    return {key: times.get(key, 0.0) for key in _TIME_STYLE}
