"""When the shares of a run that goes on are published, with a clock that only the test advances."""

from __future__ import annotations

import time

import pytest

from stepscope.capture.run_shares.activity_log import SteppingOptimizer
from stepscope.capture.run_shares.run_shares import RunClock

SECOND = 10**9


def test_shares_are_published_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    clock = RunClock()
    published: list[tuple[int, bool]] = []

    def publish(facts: dict[str, object]) -> None:
        published.append((now[0] // SECOND, bool(facts["ended"])))
        now[0] += SECOND // 100  # so the next is a second later at least
        raise ValueError("must not reach the program")

    optimizer = SteppingOptimizer("Adam")
    clock.publish_now_and_then(publish)
    for _ in range(1000):
        clock.log.begin_step(optimizer)
        now[0] += SECOND
        clock.log.end_step(optimizer)
    moments = [moment for moment, _ in published]
    assert moments[:4] == [1, 2, 3, 5]
    assert len(moments) < 20
    assert moments[-1] > 600
    assert not any(ended for _, ended in published)
    assert clock.log.excluded_ns == len(published) * SECOND // 100
    assert clock.describe(ended=True)["elapsed_ns"] == 1000 * SECOND
