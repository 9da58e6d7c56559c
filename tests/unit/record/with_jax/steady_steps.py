"""Which steps of an asynchronous loop are timed: those between which it gets no further ahead."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import pytest

from stepscope.record.jax.jax_recorder import SteadySteps
from stepscope.record.unreplaced import time


class Result:
    """An array whose work is done when its device has completed as many steps."""

    nbytes = 4

    def __init__(self, device: Device, step: int) -> None:
        self._device, self._step = device, step
        self.donated = False

    def block_until_ready(self) -> None:
        raise AssertionError("nothing may wait")

    def is_ready(self) -> bool:
        return self._device.completed > self._step

    def is_deleted(self) -> bool:
        return self.donated


class Device:
    """A device and a clock, which only the test advances."""

    def __init__(self) -> None:
        self.completed = 0
        self.now = 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: device.now)
    return device


def run(device: Device, lengths: Sequence[int], ahead: Sequence[int]) -> SteadySteps:
    """Steps that return after these times, when so many of them are not yet complete."""
    steps = SteadySteps()
    for number, (length, waiting) in enumerate(zip(lengths, ahead, strict=True)):
        device.now += length
        device.completed = number + 1 - waiting
        steps.step_ended(Result(device, number))
    return steps


def timed(steps: SteadySteps) -> tuple[int, int] | None:
    """Count and median."""
    facts = steps.timed.describe()
    return (facts["count"], facts["median_ns"]) if facts else None


def test_a_loop_that_waits_for_each_step_is_timed_at_once(device: Device) -> None:
    steps = run(device, [50] * 21, [0] * 21)
    assert timed(steps) == (20, 50)
    assert steps.is_over


def test_returns_while_the_loop_runs_ahead_are_no_steps(device: Device) -> None:
    """Four returns of 1 ns, until the device limits the loop."""
    steps = run(device, [1, 1, 1, 1, 50, 50, 50], [1, 2, 3, 4, 4, 4, 4])
    assert timed(steps) == (3, 50)
    assert not steps.is_over


def test_a_loop_that_always_runs_further_ahead_has_no_steady_steps(device: Device) -> None:
    steps = run(device, [1] * 101, range(1, 102))
    assert timed(steps) is None
    assert steps.is_over


def test_a_loop_that_reads_every_third_loss_is_timed_from_one_reading_to_the_next(device: Device) -> None:
    """Two returns at once, then one that waits for three steps."""
    steps = run(device, [1, 1, 1, 1, 148, 1, 1, 148, 1, 1, 148], [0, 1, 2, 1, 0, 1, 2, 0, 1, 2, 0])
    assert timed(steps) == (10, 50)


def test_no_more_steps_are_timed_than_are_wanted(device: Device) -> None:
    """A loop that is as far ahead only after many steps."""
    steps = run(device, [50] * 31, [0, *[2] * 10, *[3] * 10, *[4] * 9, 0])
    assert timed(steps) == (20, 50)


def test_a_loop_that_gets_slowly_ahead_is_timed_while_it_is_not(device: Device) -> None:
    steps = run(device, [9, 10, 10, 10, 9, 10, 10], [0, 0, 0, 0, 1, 1, 1])
    assert timed(steps) == (3, 10)


def test_what_was_timed_before_a_compilation_does_not_count(device: Device) -> None:
    steps = SteadySteps()
    for number, length in enumerate([10, 10, 999, 20, 20]):
        device.now += length
        device.completed = number + 1
        if length == 999:
            steps.interrupt()
        steps.step_ended(Result(device, number))
    assert timed(steps) == (2, 20)


def test_results_that_are_all_donated_show_nothing(device: Device) -> None:
    steps = SteadySteps()
    for number in range(6):
        result = Result(device, number)
        steps.step_ended(result)
        result.donated = True
    assert timed(steps) is None


def test_a_result_that_is_not_donated_shows_for_all(device: Device) -> None:
    steps = SteadySteps()
    for number in range(6):
        state, loss = Result(device, number), Result(device, number)
        device.now, device.completed = device.now + 10, number + 1
        steps.step_ended({"state": state, "loss": loss})
        state.donated = True
    assert timed(steps) == (5, 10)


def test_a_key_of_random_numbers_does_not_say_whether_it_is_ready(device: Device) -> None:
    steps, key = SteadySteps(), jax.random.key(0)
    for number in range(6):
        device.now, device.completed = device.now + 10, number + 1
        steps.step_ended((key, Result(device, number)))
    assert timed(steps) == (5, 10)
