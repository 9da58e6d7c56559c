"""The answer that draws a step in a few rows."""

from __future__ import annotations

import json
from typing import Any

from serving import ask

from stepscope.base.json_text import json_bytes
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def training(loading_us: int, steps: int = 1, communicates: bool = False) -> Trace:
    """Steps that load data, compute forward, and may reduce gradients."""
    lines = []
    for step in range(steps):
        at = 5000 + 1000 * step
        forward = at + loading_us
        lines.append(f"""
            main     | {at} {at + 900} | ProfilerStep#{step}
            main     | {at} {forward} | enumerate(DataLoader)
            main     | {forward} {forward + 200} | ## forward ##
            main     | {forward + 1} {forward + 50} | aten::mm
            main     | {forward + 10} {forward + 20} | cudaLaunchKernel | corr={9 * step + 1}
            main     | {forward + 30} {forward + 40} | cudaLaunchKernel | corr={9 * step + 2}
            stream 7 | {forward + 30} {forward + 130} | gemm | corr={9 * step + 1}
        """)
        if communicates:
            lines.append(
                f"comm 8 | {forward + 50} {forward + 250} | ncclDevKernel_AllReduce | corr={9 * step + 2}\n"
            )
    return annotate(drawn_trace("".join(lines)))


def outline(trace: Trace, **query: Any) -> dict[str, Any]:
    return ask(TraceView(trace), "outline", **query)


def pieces(answer: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
    """Start and duration of each rectangle by its row and name, µs."""
    columns = answer["timeline"]
    rows = [answer["threads"][row]["name"] for row in columns["thread"]]
    keys = zip(rows, columns["name"], strict=True)
    times = zip(columns["start_us"], columns["duration_us"], strict=True)
    return dict(zip(keys, times, strict=True))


def test_a_step_begins_at_zero_wherever_it_was_recorded() -> None:
    answer = outline(training(400))
    assert pieces(answer)["CPU", "data loading"] == (0, 400)
    assert pieces(answer)["device", "gemm"] == (430, 100)
    assert answer["timeline"]["length_us"] == 900
    assert json.loads(json_bytes(answer)) == json.loads(json.dumps(answer))


def test_work_has_the_stage_that_it_belongs_to() -> None:
    columns = outline(training(400))["timeline"]
    stages = dict(zip(columns["name"], columns["stage"], strict=True))
    assert (stages["data loading"], stages["gemm"]) == ("data_loading", "forward")


def test_rows_of_the_same_kind_have_the_same_number_in_every_outline() -> None:
    alone, together = outline(training(100)), outline(training(100, communicates=True))
    kinds = {0: "CPU", 1: "device", 2: "device, communication"}
    for answer, rows in ((alone, [0, 1]), (together, [0, 1, 2])):
        assert answer["rows"] == rows
        assert [one["name"] for one in answer["threads"]] == [kinds[row] for row in rows]
    assert (kinds[2], "ncclDevKernel_AllReduce") in pieces(together)


def test_the_step_is_the_one_asked_for_or_one_of_median_length() -> None:
    """Of steps of one length it is the first."""
    assert outline(training(100, steps=3), step=2)["step"] == 2
    assert outline(training(100, steps=3))["step"] == 0
