"""Two runs of which one had to wait for a core."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stepscope.faces.terminal.diff_text import print_comparison
from stepscope.facts.annotate import annotate
from stepscope.models.diff import compare, explain
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def run(length: int, core_share: float | None) -> Trace:
    """Six steps of this length, us, in which the process got a share of a core."""
    lines = []
    for step in range(6):
        start = step * length
        lines += [
            f"main | {start} {start + length} | ProfilerStep#{step}",
            f"main | {start + 1} {start + length - 2 - step} | aten::mm",
        ]
    facts = {}
    if core_share is not None:
        elapsed = 6000 * length
        times = {"median_ns": 1000 * length, "cpu_ns": round(1000 * length * core_share)}
        queued = round((1 - core_share) * elapsed)
        facts = {"recorded_steps": {**times, "elapsed_ns": elapsed, "queued_ns": queued}}
    return annotate(drawn_trace("\n".join(lines), capture=facts))


@pytest.mark.parametrize(
    ("lengths", "core_shares", "verdict"),
    [
        ((1000, 1300), (None, None), "slower"),
        ((1000, 1300), (1.0, 0.96), "slower"),
        ((1000, 1300), (1.0, 0.7), "unclear"),
        ((1000, 1300), (1.0, 0.9), "slower"),
        ((1300, 1000), (0.7, 1.0), "unclear"),
        ((1000, 1300), (0.7, 1.0), "slower"),
    ],
)
def test_a_change_that_the_wait_for_a_core_explains_is_unclear(
    lengths: tuple[int, int], core_shares: tuple[float | None, float | None], verdict: str
) -> None:
    found = compare(*map(run, lengths, core_shares))
    assert found.step.verdict == verdict
    assert found.parts["operators"][0].verdict == verdict


def test_the_comparison_says_which_side_was_disturbed() -> None:
    found = compare(run(1000, 1.0), run(1300, 0.7))
    assert explain(found).startswith(
        "B takes 30% more time, which other processes on the machine may have caused"
    )
    out = io.StringIO()
    print_comparison(Console(file=out, width=160), found, 5)
    assert "! B: this process got 70% of a core" in out.getvalue()
    assert "! A:" not in out.getvalue()
