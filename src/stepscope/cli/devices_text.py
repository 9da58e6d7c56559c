"""Predictions for other devices as text."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from rich.console import Console, Group, RenderableType
from rich.text import Text

from stepscope.devices.device_answer import DeviceRow, DevicesAnswer, RangedValue
from stepscope.summary.numbers import ms, percent, size
from stepscope.summary.text_tables import WIDE, plain_table

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
