"""The output of `stepscope batch` for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from stepscope.batch_size.fit import check_failed
from stepscope.devices.device_answer import DeviceRow, DevicesAnswer, RangedValue
from stepscope.roofline.device_memory import usable_bytes
from stepscope.summary.numbers import bar, ms, percent, size
from stepscope.summary.text_tables import WIDE, plain_table

if TYPE_CHECKING:
    from stepscope.batch_size import Result


_KINDS = {"weights": "blue", "gradients": "magenta", "optimizer_state": "red",
          "activations": "green", "inputs": "cyan", "temporaries": "yellow",
          "buffers": "bright_black", "untracked": "bright_black",
          "parameters": "blue", "state": "blue", "results": "magenta",
          "others": "bright_black"}  # fmt: skip
_LINES = 8
_BAR = 16
_WIDE = 100


def print_batch(
    console: Console, result: Result, at: Sequence[int] = (), fits: Sequence[Any] = ()
) -> None:
    """Print the result for an entry file.

    Args:
        console: where to.
        result: of `Session.profile`.
        at: batch sizes to predict.
        fits: of `Result.fits`.
    """
    console.print(Group(*_Text(result, at, fits, console.width).parts()), highlight=False)


class _Text:
    def __init__(self, result: Result, at: Sequence[int], fits: Sequence[Any], width: int) -> None:
        self.result, self.at, self.asked, self.width = result, at, fits, width
        self.profile = result.profile
        self.batch = result.entry.batch

    def parts(self) -> Iterator[RenderableType]:
        yield self.header()
        yield self.curve()
        yield self.verdict()
        if breakdown := self.result.breakdown:
            yield self.memory(breakdown.memory, breakdown.peak_bytes)
            yield self.lines()
        elif memory := self.result.program_memory:
            yield self.memory(memory, sum(memory.values()))
        yield self.footer()

    def header(self) -> Text:
        entry = self.result.entry
        text = Text.assemble((Path(entry.path).name, "bold"))
        facts = [f"batch size {self.batch}", _where(entry.site), _device(self.profile.device)]
        return text.append("   " + " · ".join(fact for fact in facts if fact), "dim")

    def curve(self) -> RenderableType:
        """Measured and predicted batch sizes in one table, sorted."""
        heads = (
            "batch>",
            "ms per step>",
            "samples/s>",
            *([""] if self.wide else []),
            "memory>",
            "",
        )
        result = plain_table("Throughput and memory", *heads)
        rows: dict[int, Mapping[str, Any]] = {
            point.batch: point.to_json() | {"measured": True} for point in self.profile.points
        }
        for batch in (*self.at, self.suggested or 0):
            if batch and batch not in rows and self.profile.time:
                rows[batch] = self.profile.predict(batch)
        limit = self.profile.max_throughput or max(
            (row["throughput"] or 0 for row in rows.values()), default=1.0
        )
        for batch in sorted(rows):
            self.add_row(result, rows[batch], limit)
        return result

    def add_row(self, result: Any, row: Mapping[str, Any], limit: float) -> None:
        batch, rate = row["batch"], row["throughput"] or 0.0
        measured = row.get("measured")
        mark = " ◀" if batch == self.batch else ""
        note = self.band(row) if not measured else "held back" if row["held_back"] else "measured"
        result.add_row(
            Text(f"{batch}", "bold" if mark else ""), ms(row["ms"]), f"{rate:,.1f}",
            *([Text(bar(rate / limit, _BAR), "green" if measured else "cyan")] * self.wide),
            size(row["bytes"]), Text(note + mark, "dim"),
        )  # fmt: skip

    def band(self, row: Mapping[str, Any]) -> str:
        low, high = row["throughput_range"]
        kind = "extrapolated" if row["extrapolated"] else "predicted"
        if low is None or high is None or not self.wide:
            return kind
        return f"{kind}, {low:,.1f} to {high:,.1f}"

    @property
    def wide(self) -> bool:
        return self.width >= _WIDE

    @property
    def suggested(self) -> int | None:
        return self.profile.suggestion(usable_bytes(self.profile.device))

    def verdict(self) -> Text:
        profile, text = self.profile, Text("\n")
        if profile.max_throughput and profile.time and profile.memory:
            time, memory = profile.time, profile.memory
            text.append("▶ ", "green")
            text.append(f"At most {profile.max_throughput:,.1f} samples/s", "bold")
            text.append(
                f"   {ms(time.slope)} ms and {size(round(memory.slope))} per sample, "
                f"{ms(time.intercept)} ms and {size(round(memory.intercept))} per step", "dim",
            )  # fmt: skip
            for batch in dict.fromkeys([self.batch, self.suggested]):
                if batch:
                    self.add_share(text, batch)
            if self.suggested is None:
                self.add_unknown_limit(text)
        for one in self.asked:
            self.add_fit(text, one)
        if profile.too_large:
            text.append(f"\n  Batch size {profile.too_large} ran out of memory.", "yellow")
        return text

    def add_share(self, text: Text, batch: int) -> None:
        found = self.profile.predict(batch)
        share = (found["throughput"] or 0.0) / (self.profile.max_throughput or 1.0)
        text.append(f"\n  {batch} gives {percent(min(share, 1.0))} of the limit, ")
        text.append(_with_range(found, "bytes"))
        text.append("   current" if batch == self.batch else "   reaches 90 %", "dim")
        if found["extrapolated"]:
            text.append(", extrapolated", "yellow")

    def add_unknown_limit(self, text: Text) -> None:
        largest = max(point.batch for point in self.profile.points)
        text.append("\n  No batch size is suggested: ", "yellow")
        if check_failed(self.profile.time) or check_failed(self.profile.memory):
            text.append("the held-back batch size was mispredicted.", "yellow")
        else:
            text.append(f"90 % is far beyond {largest}, the largest that was measured.", "yellow")

    def add_fit(self, text: Text, one: Mapping[str, Any]) -> None:
        if one["batch"] is None:
            text.append(f"\n  Nothing fits {one['name']}: even one sample takes more.", "yellow")
            return
        if not self.profile.trusts(one["batch"]):
            self.add_untrusted_fit(text, one)
            return
        text.append(f"\n  {one['batch']} fits {one['name']}, {_with_range(one, 'bytes')}")
        room = one["capacity_bytes"] - one["usable_bytes"]
        text.append(f"   {size(room)} left for the device's context", "dim")
        if one["host_bytes"]:
            text.append(f", {size(one['host_bytes'])} of data stay in host memory", "dim")
        if one["extrapolated"]:
            text.append(", extrapolated", "yellow")

    def add_untrusted_fit(self, text: Text, one: Mapping[str, Any]) -> None:
        largest = max(point.batch for point in self.profile.points)
        if check_failed(self.profile.time) or check_failed(self.profile.memory):
            why = "the held-back batch size was mispredicted"
        else:
            why = f"it is far from the largest that was measured, {largest}"
        text.append(f"\n  What fits {one['name']} is not known: ", "yellow")
        text.append(f"the models say {one['batch']:,}, but {why}.", "yellow")

    def memory(self, kinds: Mapping[str, int], peak: int) -> RenderableType:
        """The peak by kind, the largest first."""
        result = plain_table(f"Memory at its peak, batch size {self.batch}", "", ">", ">", "")
        whole = peak or 1
        for kind, held in sorted(kinds.items(), key=lambda pair: -pair[1]):
            if held / whole >= 0.001:
                style = _KINDS[kind]
                words = Text(kind.replace("_", " "), style)
                share = Text(bar(held / whole, _BAR), style)
                result.add_row(words, size(held), percent(held / whole), share)
        return result

    def lines(self) -> RenderableType:
        """Lines by the cost of their own PyTorch calls."""
        breakdown = self.result.breakdown
        assert breakdown is not None
        result = plain_table(
            "Lines, per step", "", "forward>", "backward>", ">", "activations>", "~"
        )
        rows = sorted(breakdown.lines, key=lambda row: -row.self_ms)[:_LINES]
        for row in rows:
            share = row.self_ms / (breakdown.step_ms or 1.0)
            if share < 0.005:
                continue
            own = row.self_ms / (row.ms or 1.0)
            names = ", ".join(one.name.removeprefix("aten::") for one in row.operators[:2])
            result.add_row(
                f"{Path(row.file).name}:{row.line}",
                ms(row.forward_ms * own), ms(row.backward_ms * own), percent(share),
                size(row.self_activations_bytes),
                Text(names, "dim", no_wrap=True, overflow="ellipsis"),
            )  # fmt: skip
        return result

    def energy(self) -> list[str]:
        """Energy at the current batch size, by the hardware's counters."""
        counter = self.profile.device.get("energy_counter")
        here = (point for point in self.profile.points if point.batch == self.batch)
        return [
            f"A sample takes {point.joules:.3g} J at {point.watts:.0f} W ({_COUNTERS[counter]})."
            for point in here if point.joules is not None and counter
        ]  # fmt: skip

    def footer(self) -> Text:
        profile = self.profile
        facts = []
        if profile.fit_error is not None:
            memory = (profile.memory.own_error if profile.memory else None) or 0.0
            facts.append(
                f"The held-back batch size was predicted within {profile.fit_error:.1%} (time) and "
                f"{memory:.2%} (memory)."
            )
        facts += self.energy()
        estimate = self.result.estimate
        if estimate is not None and estimate.error is not None:
            size_ = size(estimate.bytes[estimate.batch])
            facts.append(
                f"The estimate of memory without computing is {size_} ({estimate.error:+.2%})."
            )
        text = Text("".join(f"\n{fact}" for fact in facts), "dim")
        for warning in profile.warnings:
            text.append("\n! ", "yellow").append(warning, "")
        return text


_COUNTERS = {"NVML": "the GPU's counter", "RAPL": "the CPU's counter, with all that runs on it"}


def _with_range(found: Mapping[str, Any], quantity: str) -> str:
    """`1.2 GB (1.1 to 1.3 GB)`; the value alone where the range rounds to it."""
    low, high = (size(value) if value is not None else "" for value in found[f"{quantity}_range"])
    value = size(found[quantity])
    return value if low == high else f"{value} ({low} to {high})"


def _where(site: Any) -> str:
    return f"{site.name} at {Path(site.path).name}:{site.line}"


def _device(device: Mapping[str, Any]) -> str:
    if not device:
        return ""
    name = device["name"] or device["type"].upper()
    return f"{name}, {size(device['memory_bytes'])}" if device.get("memory_bytes") else str(name)


_FITS = {"yes": ("fits", "green"), "no": ("does not fit", "red"),
         "unsure": ("may fit", "yellow"), "unknown": ("?", "dim")}  # fmt: skip
_KWH = 3.6e6


def print_devices(console: Console, found: DevicesAnswer) -> None:
    """Print predictions for other devices."""
    console.print(Group(*_parts(found, console.width >= WIDE)), highlight=False)


def _parts(found: DevicesAnswer, wide: bool) -> Iterator[RenderableType]:
    yield _steps(found, wide)
    yield _costs(found, wide)
    if found.bandwidth_gbps is not None:
        yield _ranks(found, found.bandwidth_gbps, wide)
    yield _notes(found)


def _steps(found: DevicesAnswer, wide: bool) -> RenderableType:
    heads = ("", "batch>", "ms per step>", "samples/s>", "range", *(["memory>"] * wide), "")
    table = plain_table("On other devices, predicted", *heads)
    for row in found.devices:
        for number, one in enumerate(row.predictions):
            words, style = _FITS[one.fits]
            memory = size(round(one.bytes.value)) if one.bytes else ""
            table.add_row(
                "" if number else row.name, f"{one.batch}", ms(one.ms.value),
                _amount(one.throughput.value), Text(_between(one.throughput), "dim"),
                *([memory] * wide), Text(words + ("*" if one.extrapolated else ""), style),
            )  # fmt: skip
    return table


def _costs(found: DevicesAnswer, wide: bool) -> RenderableType:
    heads = ("", "batch>", "hours>", "USD>", "range", *(["kWh at most>"] * wide), "J/sample>")
    table = plain_table(f"{found.samples:,} samples, on demand", *heads)
    for row in found.devices:
        for number, one in enumerate(row.predictions):
            energy = _amount(one.joules.value * found.samples / _KWH) if one.joules else "–"
            table.add_row(
                "" if number else row.name, f"{one.batch}", _amount(one.hours.value),
                _amount(one.usd.value) if one.usd else "–", Text(_between(one.usd), "dim"),
                *([energy] * wide), _amount(one.joules.value) if one.joules else "–",
            )  # fmt: skip
    return table


def _ranks(found: DevicesAnswer, bandwidth_gbps: float, wide: bool) -> RenderableType:
    heads = ("", "ranks>", "ms per step>", "samples/s>", *(["range"] * wide), "efficiency>", "USD>")
    title = f"Data-parallel ranks, {bandwidth_gbps:g} Gbit/s between them"
    table = plain_table(title, *heads)
    for row in found.devices:
        for number, one in enumerate(row.ranks):
            table.add_row(
                "" if number else row.name, f"{one.ranks}", ms(one.ms.value),
                _amount(one.throughput.value),
                *([Text(_between(one.throughput), "dim")] * wide),
                percent(one.efficiency), _amount(one.usd.value) if one.usd else "–",
            )  # fmt: skip
    return table


def _notes(found: DevicesAnswer) -> Text:
    text = Text(f"\n{found.sentence}", "dim")
    if any(one.extrapolated for row in found.devices for one in row.predictions):
        text.append("\n* memory and time are extrapolated beyond the measured batch sizes.")
    text.append(f"\nData sheets read {found.data_sheets_date}. Energy is at the power limit.")
    if (here := found.measured) is not None:
        power = f"{_amount(here.joules)} J at {here.watts:.0f} W"
        text.append(f"\nMeasured here ({here.counter}), batch size {here.batch}: {power}.")
    for row in found.devices:
        text.append(f"\n{_instance(row)}")
        if row.ranks_problem:
            text.append(f"\n! {row.name}: {row.ranks_problem}", "yellow")
    return text


def _instance(row: DeviceRow) -> str:
    power = f"{row.watts:g} W" if row.watts else "power limit unknown"
    one = row.instance
    if one is None:
        return f"{row.name}: {power}, no price known; give a table with --prices"
    share = f", 1/{one.count} of it per device" if one.count > 1 else ""
    region = f" in {one.region}" if one.region not in ("", "any") else ""
    price = f"{one.usd_per_hour:g} USD/h{share}"
    return f"{row.name}: {power}; {one.provider} {one.name}{region}, {price}, {one.date}".strip()


def _between(range_: RangedValue | None) -> str:
    return f"{_amount(range_.low)} to {_amount(range_.high)}" if range_ else ""


def _amount(value: float) -> str:
    """Three digits."""
    digits = max(2 - floor(log10(value)), 0) if 0 < value < 100 else 0
    return f"{value:,.{digits}f}" if digits < 5 else f"{value:.1e}"
