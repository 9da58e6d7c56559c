"""The longest kernels, or operators, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.kernel_names import short_kernel
from stepscope.summary.facts import Kernel, Summary
from stepscope.summary.numbers import ms, percent
from stepscope.summary.text_tables import STAGE_STYLE, WIDE, plain_table, stage_words

_ROOM_FOR_PEAK = 110
_MOST = 10
_OVER_PEAK = 1.005
_ABOVE_PEAK_NOTE = (
    "over 100%: fewer operations than counted (Winograd), or inputs served from cache"
)


def kernels_parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    """A table of the longest kernels, a note on those above peak, and shares by kind.

    Args:
        summary: facts of one rank.
        width: of the terminal.
    """
    shown = summary.kernels[:_MOST]
    peak = width >= _ROOM_FOR_PEAK and any(kernel.of_peak is not None for kernel in shown)
    yield _table(f"Longest {summary.kernels_are}, per step", shown, width, peak)
    if peak and any(_is_over_peak(kernel) for kernel in shown):
        yield Text(_ABOVE_PEAK_NOTE, "dim")
    yield _kinds(summary.kinds)


def _table(title: str, kernels: Sequence[Kernel], width: int, peak: bool) -> Table:
    wide = width >= WIDE
    heads = ["", *(["kind"] if wide else []), "stage", "count>", "ms>", "of work>"]
    heads += ["of peak>", ""] if peak else []
    table = plain_table(title, *heads)
    room = width - (60 if wide else 40) - (17 if peak else 0)
    for kernel in kernels:
        stage = stage_words(kernel.stage)
        table.add_row(
            short_kernel(kernel.name, room), *([Text(kernel.kind, "dim")] if wide else []),
            Text(stage, STAGE_STYLE.get(kernel.stage, "dim")),
            f"{kernel.count:.4g}", ms(kernel.total_ms), percent(kernel.share),
            *(_of_peak(kernel) if peak else []),
        )  # fmt: skip
    return table


def _of_peak(kernel: Kernel) -> tuple[str, Text]:
    share = "" if kernel.of_peak is None else percent(kernel.of_peak)
    return share, Text(kernel.limit, "dim")


def _is_over_peak(kernel: Kernel) -> bool:
    return kernel.of_peak is not None and kernel.of_peak >= _OVER_PEAK


def _kinds(times: Mapping[str, float]) -> Text:
    whole = sum(times.values()) or 1.0
    shares = {kind: time / whole for kind, time in times.items()}
    kinds = (f"{kind} {percent(share)}" for kind, share in shares.items() if share > 0.005)
    return Text("by kind: " + " · ".join(kinds), "dim")
