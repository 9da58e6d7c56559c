"""Predictions for other devices as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.text import Text

from stepscope.devices.device_answer import DeviceRow, DevicesAnswer, Range
from stepscope.summary.numbers import ms, percent, size
from stepscope.summary.text_tables import plain_table

_FITS = {"yes": ("fits", "green"), "no": ("does not fit", "red"),
         "unsure": ("may fit", "yellow"), "unknown": ("?", "dim")}  # fmt: skip
_KWH = 3.6e6


def print_devices(console: Console, found: DevicesAnswer) -> None:
    """Print predictions for other devices."""
    console.print(Group(*_parts(found)), highlight=False)


def _parts(found: DevicesAnswer) -> Iterator[RenderableType]:
    yield _steps(found)
    yield _costs(found)
    if found.bandwidth_gbps is not None:
        yield _ranks(found)
    yield _notes(found)


def _steps(found: DevicesAnswer) -> RenderableType:
    table = plain_table(
        "On other devices, predicted", "", "batch>", "ms per step>", "samples/s>", "", "memory>", ""
    )
    for row in found.devices:
        for number, one in enumerate(row.predictions):
            words, style = _FITS[one.fits]
            low, high = one.throughput.low, one.throughput.high
            table.add_row(
                "" if number else row.name, f"{one.batch}", ms(one.ms.value),
                f"{one.throughput.value:,.0f}", Text(f"{low:,.0f} to {high:,.0f}", "dim"),
                size(round(one.bytes.value)) if one.bytes else "",
                Text(words + (", extrapolated" if one.extrapolated else ""), style),
            )  # fmt: skip
    return table


def _costs(found: DevicesAnswer) -> RenderableType:
    table = plain_table(
        f"{found.samples:,} samples, on demand", "", "batch>", "hours>", "USD>", "", "kWh at most>",
        "J/sample>",
    )  # fmt: skip
    for row in found.devices:
        for number, one in enumerate(row.predictions):
            energy = one.joules and one.joules.times(found.samples / _KWH)
            table.add_row(
                "" if number else row.name, f"{one.batch}", _amount(one.hours.value),
                _amount(one.usd.value) if one.usd else "no price",
                Text(_between(one.usd), "dim"),
                _amount(energy.value) if energy else "unknown",
                _amount(one.joules.value) if one.joules else "",
            )  # fmt: skip
    return table


def _ranks(found: DevicesAnswer) -> RenderableType:
    table = plain_table(
        f"Data-parallel ranks, {found.bandwidth_gbps:g} Gbit/s between them",
        "", "ranks>", "ms per step>", "samples/s>", "", "efficiency>", "USD>",
    )  # fmt: skip
    for row in found.devices:
        for number, one in enumerate(row.ranks):
            table.add_row(
                "" if number else row.name, f"{one.ranks}", ms(one.ms.value),
                f"{one.throughput.value:,.0f}",
                Text(f"{one.throughput.low:,.0f} to {one.throughput.high:,.0f}", "dim"),
                percent(one.efficiency), _amount(one.usd.value) if one.usd else "no price",
            )  # fmt: skip
    return table


def _notes(found: DevicesAnswer) -> Text:
    text = Text(f"\n{found.sentence}", "dim")
    text.append(f"\nData sheets read {found.data_sheets_date}. Energy is at the power limit.")
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


def _between(range_: Range | None) -> str:
    return f"{_amount(range_.low)} to {_amount(range_.high)}" if range_ else ""


def _amount(value: float) -> str:
    """Three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
