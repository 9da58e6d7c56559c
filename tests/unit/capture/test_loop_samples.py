"""Which line a thread executes, sampled."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

from stepscope.capture.loop_samples import LoopSamples


def work_until(samples: LoopSamples, count: int) -> None:
    while len(samples._at) < count:
        sum(range(100))


def test_the_line_that_a_thread_executes() -> None:
    samples = LoopSamples()
    work_until(samples, 3)
    found = samples.stop()
    lines = {place["line"] for place in found["places"] if place["function"] == "work_until"}
    first = work_until.__code__.co_firstlineno
    assert lines
    assert lines <= {first, first + 1, first + 2}
    assert {place["file"] for place in found["places"]} == {__file__}
    assert len(found["place"]) == len(found["after_ns"]) >= 3
    assert found["after_ns"] == sorted(found["after_ns"])
    assert found["since_unix_ns"] > 0


def test_the_interpreter_is_left_as_it_was() -> None:
    before = sys.getswitchinterval()
    samples = LoopSamples()
    assert sys.getswitchinterval() < before
    samples.stop()
    assert sys.getswitchinterval() == before
    assert not samples._sampler.is_alive()


def test_what_the_program_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    samples = LoopSamples()
    try:
        sys.setswitchinterval(0.02)
        samples.stop()
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)
