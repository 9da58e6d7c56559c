"""A summary as text for a terminal: what a tired person wants to read, the bottleneck first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.summary.facts import Device, Summary
from stepscope.summary.names import short_name
from stepscope.summary.tree import Node

_BAR = 20
_LEAST_SHARE = 0.02
_KERNELS = 10
_STAGE_STYLE = {
    "data_loading": "yellow", "transfer": "cyan", "forward": "green", "loss": "magenta",
    "zero_grad": "bright_black", "backward": "blue", "optimizer": "red", "other": "bright_black",
}  # fmt: skip
_TIME_STYLE = {
    "computing": "green", "communication": "magenta", "data": "yellow", "synchronisation": "cyan",
    "host": "red", "launch": "bright_black",
}  # fmt: skip
_IDLE_WORDS = {
    "computing": "computing",
    "communication": "only communicating",
    "data": "idle, waiting for data",
    "synchronisation": "idle at synchronisations",
    "host": "idle, host bound",
    "launch": "idle after launch",
}
_EVIDENCE = {
    "profiler_step": "as torch.profiler marks them",
    "optimizer": "told by the optimizer",
    "pattern": "told by a pattern of operators",
    "whole_trace": "nothing marks a step: all of the trace",
}


def render(summaries: Sequence[Summary], depth: int = 3) -> RenderableType:
    """Lines for a terminal.

    Args:
        summaries: one a rank; the details are those of the rank that computes longest.
        depth: how deep the model tree is shown.
    """
    main = max(summaries, key=_computing)
    parts = [_header(main, len(summaries)), _step(main)]
    if len(summaries) > 1:
        parts.append(_ranks(summaries, main))
    parts += [_stages(main), *_devices(main), *_model(main, depth), _kernels(main), _footer(main)]
    return Group(*(part for part in parts if part is not None))


def print_report(console: Console, summaries: Sequence[Summary], depth: int = 3) -> None:
    """Print what `render` makes."""
    console.print(render(summaries, depth), highlight=False)


def _computing(summary: Summary) -> float:
    return max((device.computing_ms for device in summary.devices), default=0.0)


# -- head


def _header(summary: Summary, ranks: int) -> Text:
    names = sorted({device.name for device in summary.devices if device.name})
    facts = [summary.framework, *names, _plural(len(summary.steps.numbers), "step")]
    if summary.world_size > 1 or ranks > 1:
        facts.append(f"rank {summary.rank} of {max(summary.world_size, ranks)}")
    line = Text.assemble((summary.source.rpartition("/")[2], "bold"))
    line.append("   " + " · ".join(fact for fact in facts if fact), "dim")
    message = str(summary.capture.get("message", ""))
    if message and summary.capture.get("outcome") != "complete":
        line.append(f"\n{message}", "yellow")
    return line


def _step(summary: Summary) -> Text:
    steps = summary.steps
    text = Text.assemble("\n", ("Step ", "bold"), (_ms(steps.mean_ms), "bold"), " ms")
    if len(steps.numbers) > 1:
        text.append(
            f"   {_ms(steps.min_ms)} to {_ms(steps.max_ms)}, ± {_ms(steps.std_ms)}"
            f" over {len(steps.numbers)} steps",
            "dim",
        )
    if steps.evidence not in ("profiler_step", "optimizer"):
        text.append(f"   ({_EVIDENCE[steps.evidence]})", "yellow")
    style = _TIME_STYLE.get(summary.verdict.bound_by, "green")
    return text.append("\n▶ ", style).append(summary.verdict.sentence, "bold")


def _ranks(summaries: Sequence[Summary], main: Summary) -> Table:
    table = _table("Ranks", "rank", "step ms", *(_IDLE_WORDS[key] for key in _TIME_STYLE))
    for one in summaries:
        device = max(one.devices, key=lambda device: device.computing_ms, default=None)
        times = {"computing": device.computing_ms, **device.idle_ms} if device else {}
        mark = " ◀ below" if one is main else ""
        cells = [_ms(times.get(key, 0.0)) for key in _TIME_STYLE]
        table.add_row(f"{one.rank}{mark}", _ms(one.steps.mean_ms), *cells)
    return table


# -- stages and devices


def _stages(summary: Summary) -> Table:
    on_device = bool(summary.devices)
    heads = ["", "CPU ms", "", ""] + (["device ms", ""] if on_device else []) + ["bound by"]
    table = _table("Stages, a step", *heads)
    longest = max([stage.cpu_ms for stage in summary.stages] +
                  [stage.device_ms for stage in summary.stages] + [1e-9])  # fmt: skip
    for stage in summary.stages:
        style = _STAGE_STYLE[stage.stage]
        cells: list[RenderableType] = [
            Text(stage.stage.replace("_", " "), style),
            _ms(stage.cpu_ms),
            _percent(stage.share),
            _bar(stage.cpu_ms / longest, style),
        ]
        if on_device:
            cells += [_ms(stage.device_ms), _bar(stage.device_ms / longest, style)]
        table.add_row(*cells, Text(stage.bound_by, "dim"))
    return table


def _devices(summary: Summary) -> Iterable[RenderableType]:
    for device in summary.devices:
        name = f"Device {device.device}" if len(summary.devices) > 1 else "Device"
        yield _device_table(f"{name}, a step of {_ms(device.window_ms)} ms", device)


def _device_table(title: str, device: Device) -> Table:
    table = _table(title, "", "ms", "", "")
    times = {"computing": device.computing_ms, **device.idle_ms}
    for key, style in _TIME_STYLE.items():
        share = times[key] / device.window_ms if device.window_ms else 0.0
        if share >= 0.001:
            table.add_row(
                Text(_IDLE_WORDS[key], style), _ms(times[key]), _percent(share), _bar(share, style)
            )
    if device.overlapped_ms > 0.0005 * device.window_ms:
        table.add_row(
            Text("communicating while computing", "dim"), _ms(device.overlapped_ms),
            _percent(device.overlapped_ms / device.window_ms), "",
        )  # fmt: skip
    return table


# -- model


def _model(summary: Summary, depth: int) -> Iterable[RenderableType]:
    if not summary.modules:
        return
    on_device = bool(summary.devices)
    where = "device" if on_device else "CPU"
    table = _table(f"Model, {where} ms a step", "", "", "forward", "backward", "", "", "parameters")
    total = sum(_cost(node, on_device) for node in summary.modules) or 1e-9
    for node in summary.modules:
        _add_node(table, node, total, on_device, 0, depth)
    yield table


def _add_node(
    table: Table, node: Node, total: float, on_device: bool, level: int, depth: int
) -> None:
    share = _cost(node, on_device) / total
    forward = node.forward_device_ms if on_device else node.forward_cpu_ms
    backward = _cost(node, on_device) - forward
    name = Text("  " * level).append(node.name or "model", "bold" if level == 0 else "")
    if node.count > 1:
        name.append(f"  × {node.count}", "yellow")
    parameters = "" if not node.parameters else _count(node.parameters)
    table.add_row(
        name, Text(node.kind, "dim"), _ms(forward), _ms(backward), _percent(share),
        _bar(share, "green"), Text(parameters, "dim"),
    )  # fmt: skip
    if level + 1 < depth:
        _add_children(table, node, total, on_device, level + 1, depth)


def _add_children(
    table: Table, node: Node, total: float, on_device: bool, level: int, depth: int
) -> None:
    notable = [one for one in node.children if _cost(one, on_device) / total >= _LEAST_SHARE]
    for child in notable:
        _add_node(table, child, total, on_device, level, depth)
    hidden = [one for one in node.children if one not in notable]
    if hidden and notable:
        share = sum(_cost(one, on_device) for one in hidden) / total
        words = f"{'  ' * level}… {len(hidden)} more"
        table.add_row(Text(words, "dim"), "", "", "", Text(_percent(share), "dim"), "", "")


def _cost(node: Node, on_device: bool) -> float:
    return node.device_ms if on_device else node.cpu_ms


# -- kernels and the rest


def _kernels(summary: Summary) -> RenderableType | None:
    if not summary.kernels:
        return None
    table = _table(f"Longest {summary.kernels_are}, a step", "", "kind", "stage", "count", "ms", "")
    for kernel in summary.kernels[:_KERNELS]:
        table.add_row(
            short_name(kernel.name), Text(kernel.kind, "dim"),
            Text(kernel.stage.replace("_", " "), _STAGE_STYLE.get(kernel.stage, "dim")),
            f"{kernel.count:.4g}", _ms(kernel.total_ms), _percent(kernel.share),
        )  # fmt: skip
    whole = sum(summary.kinds.values()) or 1e-9
    kinds = " · ".join(
        f"{kind} {_percent(ms / whole)}" for kind, ms in summary.kinds.items() if ms / whole > 0.005
    )
    return Group(table, Text("  by kind: " + kinds, "dim"))


def _footer(summary: Summary) -> Text:
    facts = [f"Data loading takes {_ms(summary.data_wait_ms)} ms of each step."]
    if summary.parameters is not None:
        size = _bytes(summary.parameter_bytes or 0)
        facts.append(f"The model has {_count(summary.parameters)} parameters ({size}).")
    for device, peak in summary.peak_memory_bytes.items():
        facts.append(f"Peak memory on {device}: {_bytes(peak)}.")
    text = Text("\n" + "\n".join(facts[0 if summary.data_wait_ms else 1 :]))
    for warning in summary.warnings:
        text.append("\n! ", "yellow").append(str(warning["message"]))
        text.append(f" ({warning['count']} times)" if warning["count"] > 1 else "", "dim")
    return text


# -- small parts


def _table(title: str, *heads: str) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, header_style="dim",
    )  # fmt: skip
    numbers = {"CPU ms", "device ms", "ms", "forward", "backward", "count", "step ms", "parameters"}
    for position, head in enumerate(heads):
        right = (
            head in numbers or head in _IDLE_WORDS.values() or (head == "" and position in (2, 4))
        )
        table.add_column(
            head, justify="right" if right else "left", no_wrap=not right or head == ""
        )
    return table


def _bar(share: float, style: str) -> Text:
    """A bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return Text("█" * full + ("" if not rest else chr(0x2590 - rest)), style)


def _ms(value: float) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def _count(value: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return str(value)


def _bytes(value: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"
