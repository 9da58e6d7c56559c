"""A summary as text for a terminal: what a tired person wants to read, the bottleneck first."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.summary.devices import Device
from stepscope.summary.efficiency_text import efficiency_parts
from stepscope.summary.facts import StepTimes, Summary
from stepscope.summary.kernels_text import kernels_parts
from stepscope.summary.modules_text import modules_table
from stepscope.summary.numbers import count, ms, percent, plural, size
from stepscope.summary.tables import STAGE_STYLE, bar_for
from stepscope.summary.tables import plain_table as _table

_ROOM_FOR_BARS = 72
_SKEWED = 0.1
_UNEVEN = 3
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
            yield modules_table(self.main, self.depth, self.width)
        if self.main.kernels:
            yield from kernels_parts(self.main, self.width)
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
            style = STAGE_STYLE[one.stage]
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

    # -- the rest

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
        return bar_for(share, style, self.width)


def _is_skewed(steps: StepTimes) -> bool:
    """Whether a few steps decide the mean."""
    return abs(steps.mean_ms - steps.median_ms) > _SKEWED * steps.median_ms


def _computing(summary: Summary) -> float:
    return max((device.computing_ms for device in summary.devices), default=0.0)


def _times(device: Device) -> dict[str, float]:
    times = {"computing": device.computing_ms, **device.idle_ms}
    return {key: times.get(key, 0.0) for key in _TIME_STYLE}
