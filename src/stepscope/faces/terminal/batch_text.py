"""The output of `stepscope batch` for a terminal: the script's own device, then others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.base.numbers import bar, ms, percent, rounded, size
from stepscope.facts.roofline.rates import usable_bytes
from stepscope.facts.summary.text_tables import WIDE, plain_table
from stepscope.models.batch_size import Result
from stepscope.models.batch_size.breakdown import StepBreakdown
from stepscope.models.batch_size.entry_profile import Profile
from stepscope.models.devices.device_answer import DevicePrediction, DeviceRow, DevicesAnswer, RangedValue

_COLORS = {
    "blue": "weights parameters state",
    "magenta": "gradients results",
    "red": "optimizer_state",
    "green": "activations",
    "cyan": "inputs",
    "yellow": "temporaries",
    "bright_black": "buffers untracked others",
}
_COLOR_OF = {kind: color for color, kinds in _COLORS.items() for kind in kinds.split()}
_COUNTERS = {"NVML": "the GPU's counter", "RAPL": "the CPU's counter, with all that runs on it"}
FITS = {
    "yes": ("fits", "green"),
    "no": ("does not fit", "red"),
    "unsure": ("may fit", "yellow"),
    "unknown": ("?", "dim"),
}
_LINES = 8  # shown at most
_LEAST_LINE = 0.005  # of the step
_LEAST_KIND = 0.001  # of the peak
_BAR = 16  # characters
_KWH = 3.6e6  # joules


def print_batch(console: Console, result: Result, at: Sequence[int] = (), fits: Sequence[Any] = ()) -> None:
    """Print the result for an entry file, with predictions at some batch sizes and what fits."""
    console.print(Group(*_parts(result, at, fits, console.width >= WIDE)), highlight=False)


def _parts(result: Result, at: Sequence[int], fits: Sequence[Any], wide: bool) -> Iterator[RenderableType]:
    profile, batch = result.profile, result.entry.batch
    suggested = profile.suggestion(usable_bytes(profile.device))
    yield _header(result)
    yield _curve(profile, batch, (*at, suggested or 0), wide)
    yield _verdict(profile, batch, suggested, fits)
    if breakdown := result.breakdown:
        yield _memory(breakdown.memory, breakdown.peak_bytes, batch)
        yield _line_table(breakdown)
    elif memory := result.program_memory:
        yield _memory(memory, sum(memory.values()), batch)
    yield _footer(result)


def _header(result: Result) -> Text:
    entry, device = result.entry, result.profile.device
    site = f"{entry.site.name} at {Path(entry.site.path).name}:{entry.site.line}"
    facts = [f"batch size {entry.batch}", site, _device(device)]
    text = Text(Path(entry.path).name, "bold")
    return Text.assemble(text, ("   " + " · ".join(fact for fact in facts if fact), "dim"))


def _device(device: Mapping[str, Any]) -> str:
    if not device:
        return ""
    name = device["name"] or device["type"].upper()
    return f"{name}, {size(device['memory_bytes'])}" if device.get("memory_bytes") else str(name)


def _curve(profile: Profile, own: int, predicted: Iterable[int], wide: bool) -> Table:
    heads = ("batch>", "ms per step>", "samples/s>", *([""] * wide), "memory>", "")
    table = plain_table("Throughput and memory", *heads)
    rows: dict[int, Mapping[str, Any]] = {
        point.batch: point.to_json() | {"measured": True} for point in profile.points
    }
    for batch in predicted:
        if batch and batch not in rows and profile.time:
            rows[batch] = profile.predict(batch)
    limit = profile.max_throughput or max((row["throughput"] or 0 for row in rows.values()), default=1.0)
    for batch, row in sorted(rows.items()):
        rate, measured, mark = row["throughput"] or 0.0, "measured" in row, " ◀" * (batch == own)
        note = _band(row, wide) if not measured else "held back" if row["held_back"] else "measured"
        table.add_row(
            Text(f"{batch}", "bold" if mark else ""),
            ms(row["ms"]),
            _rate(rate),
            *([Text(bar(rate / limit, _BAR), "green" if measured else "cyan")] * wide),
            size(row["bytes"]),
            Text(note + mark, "dim"),
        )
    return table


def _band(row: Mapping[str, Any], wide: bool) -> str:
    low, high = row["throughput_range"]
    kind = "extrapolated" if row["extrapolated"] else "predicted"
    return kind if low is None or high is None or not wide else f"{kind}, {_rate(low)} to {_rate(high)}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s >= 10 else rounded(per_s)


def _verdict(profile: Profile, batch: int, suggested: int | None, fits: Sequence[Any]) -> Text:
    text = Text("\n")
    if profile.max_throughput and profile.time and profile.memory:
        time, memory = profile.time, profile.memory
        if not time.has_certain_slope:
            text.append("▶ The maximum throughput is not known", "yellow")
            text.append(": run time grows by hardly more than its noise. Measure larger batch sizes.")
            return _add_rest(text, profile, fits)
        text.append("▶ ", "green")
        text.append(f"At most {_rate(profile.max_throughput)} samples/s", "bold")
        text.append(
            f"   {ms(time.slope)} ms and {size(round(memory.slope))} per sample, "
            f"{ms(time.intercept)} ms and {size(round(memory.intercept))} per step",
            "dim",
        )
        for shown in dict.fromkeys(filter(None, [batch, suggested])):
            _add_share(text, profile, shown, "current" if shown == batch else "reaches 90 %")
        if suggested is None:
            _add_unknown_limit(text, profile)
    return _add_rest(text, profile, fits)


def _add_rest(text: Text, profile: Profile, fits: Sequence[Any]) -> Text:
    for fit in fits:
        _add_fit(text, profile, fit)
    if profile.too_large:
        text.append(f"\n  Batch size {profile.too_large} ran out of memory.", "yellow")
    return text


def _add_share(text: Text, profile: Profile, batch: int, note: str) -> None:
    prediction = profile.predict(batch)
    share = (prediction["throughput"] or 0.0) / (profile.max_throughput or 1.0)
    text.append(f"\n  {batch} gives {percent(min(share, 1.0))} of the limit, ")
    text.append(_bytes_in_range(prediction)).append(f"   {note}", "dim")
    if prediction["extrapolated"]:
        text.append(", extrapolated", "yellow")


def _add_unknown_limit(text: Text, profile: Profile) -> None:
    far = f"90 % is far beyond {profile.most}, the largest that was measured"
    why = "the held-back batch size was mispredicted" if profile.mispredicted else far
    text.append(f"\n  No batch size is suggested: {why}.", "yellow")


def _add_fit(text: Text, profile: Profile, fit: Mapping[str, Any]) -> None:
    if fit["batch"] is None:
        text.append(f"\n  Nothing fits {fit['name']}: even one sample takes more.", "yellow")
        return
    if not profile.trusts(fit["batch"]):
        far = f"it is far from the largest that was measured, {profile.most}"
        why = "the held-back batch size was mispredicted" if profile.mispredicted else far
        text.append(f"\n  What fits {fit['name']} is not known: ", "yellow")
        text.append(f"the models say {fit['batch']:,}, but {why}.", "yellow")
        return
    low, high = fit["batch_range"]
    within = f" ({low or 0:,} to {high:,})" if high and low != high else ""
    text.append(f"\n  {fit['batch']:,}{within} fits {fit['name']}, {_bytes_in_range(fit)} in use")
    room = fit["capacity_bytes"] - fit["usable_bytes"]
    text.append(f"   {size(room)} left for the device's context", "dim")
    if fit["host_bytes"]:
        text.append(f", {size(fit['host_bytes'])} of data stay in host memory", "dim")
    if fit["extrapolated"]:
        text.append(", extrapolated", "yellow")


def _bytes_in_range(prediction: Mapping[str, Any]) -> str:
    """`1.2 GB (1.1 to 1.3 GB)`; the value alone where the range rounds to it."""
    low, high = (size(end) if end is not None else "" for end in prediction["bytes_range"])
    value = size(prediction["bytes"])
    return value if low == high else f"{value} ({low} to {high})"


def _memory(kinds: Mapping[str, int], peak: int, batch: int) -> Table:
    table = plain_table(f"Memory at its peak, batch size {batch}", "", ">", ">", "")
    for kind, held in sorted(kinds.items(), key=lambda pair: -pair[1]):
        share, style = held / (peak or 1), _COLOR_OF[kind]
        if share >= _LEAST_KIND:
            words = Text(kind.replace("_", " "), style)
            table.add_row(words, size(held), percent(share), Text(bar(share, _BAR), style))
    return table


def _line_table(breakdown: StepBreakdown) -> Table:
    table = plain_table("Lines, per step", "", "forward>", "backward>", ">", "activations>", "~")
    for row in sorted(breakdown.lines, key=lambda row: -row.self_ms)[:_LINES]:
        share, own = row.self_ms / (breakdown.step_ms or 1.0), row.self_ms / (row.ms or 1.0)
        if share >= _LEAST_LINE:
            names = ", ".join(operator.name.removeprefix("aten::") for operator in row.operators[:2])
            table.add_row(
                f"{Path(row.file).name}:{row.line}",
                ms(row.forward_ms * own),
                ms(row.backward_ms * own),
                percent(share),
                size(row.self_activations_bytes),
                Text(names, "dim", no_wrap=True, overflow="ellipsis"),
            )
    return table


def _footer(result: Result) -> Text:
    profile, estimate = result.profile, result.estimate
    facts = []
    if profile.fit_error is not None:
        memory = (profile.memory.own_error if profile.memory else None) or 0.0
        facts.append(
            f"The held-back batch size was predicted within {profile.fit_error:.1%} (time) and "
            f"{memory:.2%} (memory)."
        )
    counter = profile.device.get("energy_counter")
    for point in profile.points:
        if point.batch == result.entry.batch and point.joules is not None and counter:
            power = f"{rounded(point.joules)} J at {point.watts:.0f} W"
            facts.append(f"A sample takes {power} ({_COUNTERS[counter]}).")
    if estimate is not None and estimate.error is not None:
        memory_text = f"{size(estimate.bytes[estimate.batch])} ({estimate.error:+.2%})"
        facts.append(f"The estimate of memory without computing is {memory_text}.")
    text = Text("".join(f"\n{fact}" for fact in facts), "dim")
    for warning in profile.warnings:
        text.append("\n! ", "yellow").append(warning, "")
    return text


# -- other devices


def print_devices(console: Console, answer: DevicesAnswer) -> None:
    wide = console.width >= WIDE
    parts: list[RenderableType] = [_step_table(answer, wide), _cost_table(answer, wide)]
    if answer.bandwidth_gbps is not None:
        parts.append(_rank_table(answer, answer.bandwidth_gbps, wide))
    console.print(Group(*parts, _notes(answer)), highlight=False)


def _predictions(answer: DevicesAnswer) -> Iterator[tuple[str, DevicePrediction]]:
    for row in answer.devices:
        for number, prediction in enumerate(row.predictions):
            yield "" if number else row.name, prediction


def _step_table(answer: DevicesAnswer, wide: bool) -> Table:
    heads = ("", "batch>", "ms per step>", "samples/s>", "range", *(["memory>"] * wide), "")
    table = plain_table("On other devices, predicted", *heads)
    for name, prediction in _predictions(answer):
        words, style = FITS[prediction.fits]
        memory = size(round(prediction.bytes.value)) if prediction.bytes else ""
        table.add_row(
            name,
            f"{prediction.batch}",
            ms(prediction.ms.value),
            rounded(prediction.throughput.value),
            Text(_between(prediction.throughput), "dim"),
            *([memory] * wide),
            Text(words + ("*" if prediction.extrapolated else ""), style),
        )
    return table


def _cost_table(answer: DevicesAnswer, wide: bool) -> Table:
    heads = ("", "batch>", "hours>", "USD>", "range", *(["kWh at most>"] * wide), "J/sample>")
    table = plain_table(f"{answer.samples:,} samples, on demand", *heads)
    for name, prediction in _predictions(answer):
        energy = rounded(prediction.joules.value * answer.samples / _KWH) if prediction.joules else "–"
        table.add_row(
            name,
            f"{prediction.batch}",
            rounded(prediction.hours.value),
            _value(prediction.usd),
            Text(_between(prediction.usd), "dim"),
            *([energy] * wide),
            _value(prediction.joules),
        )
    return table


def _rank_table(answer: DevicesAnswer, bandwidth_gbps: float, wide: bool) -> Table:
    heads = ("", "ranks>", "ms per step>", "samples/s>", *(["range"] * wide), "efficiency>", "USD>")
    table = plain_table(f"Data-parallel ranks, {bandwidth_gbps:g} Gbit/s between them", *heads)
    for row in answer.devices:
        for number, prediction in enumerate(row.ranks):
            table.add_row(
                "" if number else row.name,
                f"{prediction.ranks}",
                ms(prediction.ms.value),
                rounded(prediction.throughput.value),
                *([Text(_between(prediction.throughput), "dim")] * wide),
                percent(prediction.efficiency),
                _value(prediction.usd),
            )
    return table


def _notes(answer: DevicesAnswer) -> Text:
    text = Text(f"\n{answer.sentence}", "dim")
    if any(prediction.extrapolated for _, prediction in _predictions(answer)):
        text.append("\n* memory and time are extrapolated beyond the measured batch sizes.")
    text.append(f"\nData sheets read {answer.data_sheets_date}. Energy is at the power limit.")
    if (here := answer.measured) is not None:
        power = f"{rounded(here.joules)} J at {here.watts:.0f} W"
        text.append(f"\nMeasured here ({here.counter}), batch size {here.batch}: {power}.")
    for row in answer.devices:
        text.append(f"\n{_instance(row)}")
        if row.ranks_problem:
            text.append(f"\n! {row.name}: {row.ranks_problem}", "yellow")
    return text


def _instance(row: DeviceRow) -> str:
    power = f"{row.watts:g} W" if row.watts else "power limit unknown"
    instance = row.instance
    if instance is None:
        return f"{row.name}: {power}, no price known; give a table with --prices"
    share = f", 1/{instance.count} of it per device" if instance.count > 1 else ""
    region = f" in {instance.region}" if instance.region not in ("", "any") else ""
    price = f"{instance.usd_per_hour:g} USD/h{share}"
    return (
        f"{row.name}: {power}; {instance.provider} {instance.name}{region}, {price}, {instance.date}".strip()
    )


def _between(value: RangedValue | None) -> str:
    return f"{rounded(value.low)} to {rounded(value.high)}" if value else ""


def _value(value: RangedValue | None) -> str:
    return rounded(value.value) if value else "–"
