"""What other processes disturb: it is repeated, marked and measured again; shares are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from stepscope.models.calibration import timed as timing
from stepscope.models.calibration.calibration import (
    Calibration,
    Machine,
    calibrate,
    calibration_path,
    find_calibration,
    keep_calibration,
)
from stepscope.models.calibration.measure import undisturbed
from stepscope.models.calibration.timed import Timed, least, least_share, plain, share_since
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Metadata


def drawn(times: list[tuple[float, float]]) -> Callable[[], list[list[Any]]]:
    """A measurement whose repetitions take these times and got these shares."""
    left = iter(times)
    return lambda: [[256.0, Timed(*next(left))]]


def test_only_what_was_disturbed_is_repeated_and_the_shorter_time_counts() -> None:
    found = undisturbed(
        {
            "quiet": drawn([(10, 1.0)]),
            "busy": drawn([(70, 0.4), (20, 0.99)]),
            "busier": drawn([(70, 0.3), (50, 0.5), (30, 0.97)]),
        }
    )
    assert plain(found) == {"quiet": [[256.0, 10]], "busy": [[256.0, 20]], "busier": [[256.0, 30]]}
    assert least_share(found) == 0.97


def test_a_machine_that_stays_busy_is_reported_with_the_share_of_the_times_that_count() -> None:
    found = undisturbed({"busy": drawn([(70, 0.4), (40, 0.6), (50, 0.7)])})
    assert plain(found) == {"busy": [[256.0, 40]]}
    assert least_share(found) == 0.6


@pytest.mark.parametrize(
    ("before", "now", "share"),
    [
        ({1: 5}, {1: 5}, 1.0),
        ({1: 5}, {1: 455}, 0.6),
        ({1: 5}, {1: 15, 2: 750}, 0.3),
        ({1: 0}, {1: 9000}, 0.0),
        ({}, {}, 1.0),
        ({1: 0, 2: 7}, {1: 40, 2: 47}, 1.0),
    ],
)
def test_the_share_is_that_of_the_thread_that_waited_longest(
    before: dict[int, int], now: dict[int, int], share: float
) -> None:
    """Times in us; waking up takes 50 us at most."""
    first, last = ({thread: us * 1000 for thread, us in one.items()} for one in (before, now))
    assert share_since(first, last, 1_000_000) == pytest.approx(share, abs=0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A machine on which a call takes `run` ns, and waits for a core as long as `queue` says."""
    state = {"now": 0, "run": 0, "queue": 0, "waited": 0}
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: state["now"])
    monkeypatch.setattr(timing.threading, "get_native_id", lambda: 1)
    monkeypatch.setattr(timing, "queued_ns", lambda: {1: state["waited"]})
    return state


@pytest.mark.parametrize(("run", "queue"), [(4_000_000, 0), (4_000_000, 12_000_000)])
def test_waiting_for_a_core_is_no_time_of_a_call(run: int, queue: int, clock: dict[str, int]) -> None:
    def call() -> None:
        clock["now"] += run + queue
        clock["waited"] += queue

    (found,) = least([call])
    assert found == (run, pytest.approx(run / (run + queue), abs=0.01))


# -- the calibration that is kept

TRACE = drawn_trace("main | 0 9 | aten::mm", framework_version="2.13.0", capture={"threads": 1})
MACHINE = Machine.of(TRACE.metadata)


class Child:
    """Stands in for the measuring process: each time gives the next of these shares."""

    def __init__(self, shares: list[float]) -> None:
        self.shares = iter(shares)
        self.requests: list[dict[str, object]] = []

    def __call__(self, function: str, request: dict[str, object]) -> dict[str, Any]:
        self.requests.append(request)
        share = next(self.shares)
        names = ("casts", "copies", "loading", "reducing")
        tables = {name: [[1.0, 100 / share]] for name in names}
        return {
            "torch": "2.13.0",
            "core_share": share,
            "operators": {},
            "optimizers": {},
            "sharding": {},
            "sparse_gradients": [],
            **tables,
        }


@pytest.fixture
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Child:
    found = Child(request.param)
    module = import_module("stepscope.models.calibration.calibration")  # not the function of that name
    monkeypatch.setattr(module, "in_child", found)
    return found


def kept(metadata: Metadata = TRACE.metadata) -> Calibration:
    found = find_calibration(metadata)
    assert found is not None
    return found


@pytest.mark.parametrize("child", [[0.4, 0.99]], indirect=True)
def test_a_disturbed_calibration_is_measured_again_the_next_time(child: Child) -> None:
    assert calibrate(TRACE).is_disturbed
    assert "measured on a busy machine with 40% of a core" in str(kept())
    assert not calibrate(TRACE).is_disturbed
    assert calibrate(TRACE).core_share == 0.99  # and then trusted
    assert [request["machine"] for request in child.requests] == [True, True]
    assert "busy" not in str(kept())


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "[]", "{}", '{"machine": {}}', "casts", "date", "machine"]
)
@pytest.mark.parametrize("child", [[1.0, 1.0]], indirect=True)
def test_a_damaged_file_is_as_none(child: Child, text: str) -> None:
    whole = calibrate(TRACE).to_json()
    path = calibration_path(MACHINE)
    assert path is not None
    path.write_text(json.dumps(whole | {text: [[None]]}) if text in whole else text)
    assert find_calibration(TRACE.metadata) is None
    assert calibrate(TRACE).to_json() == whole


@pytest.mark.parametrize("child", [[0.6, 0.4]], indirect=True)
def test_of_two_disturbed_calibrations_the_less_disturbed_counts(child: Child) -> None:
    first = calibrate(TRACE)
    assert calibrate(TRACE) == first == kept()
    assert len(child.requests) == 2


@pytest.mark.parametrize("child", [[0.5, 0.7]], indirect=True)
def test_afresh_replaces_a_better_one(child: Child) -> None:
    keep_calibration(replace(Calibration(MACHINE, "2026-11-21"), core_share=0.99))
    assert calibrate(TRACE, afresh=True).core_share == kept().core_share == 0.5
