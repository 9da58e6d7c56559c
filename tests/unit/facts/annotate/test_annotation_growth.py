"""The work of annotation grows with the events: no step may look at those of all steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace


def trace_of(steps: int) -> Trace:
    """Steps with names of their own, of forward, loss, backward, optimizer, and a kernel each."""
    return drawn_trace(
        "\n".join(
            f"""
            main     | {at}      {at + 90} | ProfilerStep#{step}
            main     | {at + 5}  {at + 20} | aten::mm            | seq={step}
            main     | {at + 6}  {at + 9}  | cudaLaunchKernel    | corr={step}
            main     | {at + 22} {at + 25} | annotation {step}   | cat=annotation
            autograd | {at + 30} {at + 50} | MmBackward0         | seq={step} fwd=1
            main     | {at + 60} {at + 80} | Optimizer.step#SGD.step
            stream 7 | {at + 12} {at + 40} | kernel_{step}       | corr={step}
            """
            for step, at in ((step, step * 100) for step in range(steps))
        )
    )


def touched(steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows and values that tests of text, and intervals that clipping, look at."""
    count = 0
    where, clip = Text.where, Intervals.clip

    def counted_where(self: Text, test: Callable[[str], bool]) -> object:
        def counted(value: str) -> bool:
            nonlocal count
            count += 1
            return test(value)

        nonlocal count
        count += len(self)
        return where(self, counted)

    def counted_clip(self: Intervals, start: int, end: int) -> Intervals:
        nonlocal count
        found = clip(self, start, end)
        count += len(found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Text, "where", counted_where)
        patch.setattr(Intervals, "clip", counted_clip)
        trace = annotate(trace_of(steps), None)
    assert len(trace["steps"]) == steps
    return count


def test_ten_times_the_steps_are_ten_times_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched(300, monkeypatch) <= 12 * touched(30, monkeypatch)
