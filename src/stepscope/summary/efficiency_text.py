"""The efficiency of a step as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from stepscope.summary.facts import Efficiency
from stepscope.summary.numbers import ms, operations, percent
from stepscope.summary.text_tables import plain_table

_PRECISIONS = {"half": "16 bits", "tf32": "TF32", "fp32": "FP32"}
_COUNTED_BY = {"xla": "as XLA counts them", "shapes": "from the shapes in XLA's programs"}
_ALL = 0.995
Row = tuple[str, float, float, float | None, str]


def efficiency_parts(found: Efficiency) -> Iterator[RenderableType]:
    """A table of rates, and a line that says what they cover."""
    scale, unit = (1.0, "TFLOP/s") if (found.busy_tflops or found.tflops) >= 1 else (1e3, "GFLOP/s")
    peaks = ["of peak>", ""] if found.busy_utilization is not None else []
    table = plain_table("FLOPs per step", "", ">", f"{unit}>", *peaks)
    for label, flops, rate, share, name in _rows(found):
        cells = [label, operations(flops) if flops else "", ms(rate * scale)]
        of_peak = [percent(share), name] if share is not None else ["", ""]
        table.add_row(*cells, *(of_peak if peaks else []))
    yield table
    yield Text(" · ".join(_notes(found)), "dim")


def _rows(found: Efficiency) -> Iterator[Row]:
    repeated = found.repeated_flops / found.flops
    own = found.flops - found.repeated_flops
    yield "whole step", own, found.tflops * (1 - repeated), found.mfu, "MFU"
    if repeated:
        yield "with recomputation", found.flops, found.tflops, found.hfu, "HFU"
    if found.busy_tflops is not None:
        yield "while counted work runs", 0, found.busy_tflops, found.busy_utilization, ""


def _notes(found: Efficiency) -> Iterator[str]:
    yield ", ".join(
        filter(
            None,
            (
                "counted: matrix products, convolutions and attention",
                _COUNTED_BY.get(found.counted_by),
            ),
        )
    )
    if found.known < _ALL:
        yield f"known for {percent(found.known)} of their time"
    if found.gpu and found.peak_tflops:
        rates = (
            f"{rate:g} TFLOP/s in {_PRECISIONS[name]}" for name, rate in found.peak_tflops.items()
        )
        yield f"{found.gpu}: {', '.join(rates)}"
