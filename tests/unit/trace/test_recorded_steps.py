"""What a capture's manifest says of the time of its steps."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.trace.recorded_steps import (
    active_share,
    apart_ms,
    blocked_share,
    core_share,
    cpus_of,
    held_up_share,
    later_blocked_share,
    later_parts,
    load_warning,
    milliseconds,
    waits_for_a_core,
    worker_restarts,
)


def steps(**ns: Any) -> dict[str, Any]:
    """A capture with these times of its recorded steps."""
    return {"recorded_steps": {f"{name}_ns": value for name, value in ns.items()}}


@pytest.mark.parametrize(
    ("ns", "text"), [(421_271_000, "421 ms"), (4_100_000, "4.1 ms"), (61_234_567_000, "61,235 ms")]
)
def test_a_time_has_three_digits(ns: float, text: str) -> None:
    assert milliseconds(ns) == text


@pytest.mark.parametrize(
    ("capture", "cores"),
    [
        ({"cpus_usable": 4, "cpu_count": 8}, 4),
        ({"cpus_usable": None, "cpu_count": 8}, 8),
        ({"cpu_count": "2"}, 2),
        ({}, 0),
    ],
)
def test_the_cores_are_those_that_may_be_used(capture: dict[str, Any], cores: int) -> None:
    assert cpus_of(capture) == cores


@pytest.mark.parametrize(
    ("capture", "share"),
    [
        ({}, None),
        ({"recorded_steps": None}, None),
        (steps(elapsed=0, queued=1, cpu=1, median=1), None),
        (steps(elapsed=10, queued=None, cpu=1, median=1), None),
        (steps(elapsed=100, queued=25, cpu=3, median=10), 0.75),
        (steps(elapsed=100, queued=60, cpu=8, median=10), 0.8),  # few steps alone waited
        (steps(elapsed=100, queued=60, cpu=12, median=10), 1.0),
        (steps(elapsed=100, queued=60, cpu=0.6), 0.6),
        (steps(elapsed=100, queued=60, cpu=0, median=10), 0.4),
        (steps(elapsed=100, queued=30, used=10), 0.25),  # of JAX
        (steps(elapsed=100, queued=0, used=0), 0.0),
    ],
)
def test_the_share_of_a_core_that_was_got(capture: dict[str, Any], share: float | None) -> None:
    assert core_share(capture) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("capture", "share"),
    [
        ({}, 1.0),
        ({"awaited": 0.25}, 0.75),
        ({"awaited": 1.5}, 0.0),
        (steps(elapsed=0, queued=1, cpu=1, median=10), 1.0),
        (steps(elapsed=10, queued=None, cpu=1, median=10), 1.0),
        (steps(elapsed=10, queued=1, cpu=None, median=10), 1.0),
        (steps(elapsed=100, queued=20, cpu=4, median=10), 0.6),
        (steps(elapsed=100, queued=80, cpu=4, median=10), 1.0),
        (steps(elapsed=100, queued=80, cpu=4, median=10) | {"awaited": 0.5}, 0.5),
        (steps(elapsed=100, queued=20, cpu=0.5), 0.7),
    ],
)
def test_the_share_in_which_the_thread_ran_or_waited_for_a_core(
    capture: dict[str, Any], share: float
) -> None:
    assert active_share(capture) == pytest.approx(share)
    later = {"unrecorded_steps": capture.get("recorded_steps"), "awaited": capture.get("awaited", 0.0)}
    assert active_share(later, "unrecorded_steps") == pytest.approx(share)


@pytest.mark.parametrize(
    ("own", "process", "queued", "share"),
    [(4, 8, 20, 0.4), (4, 4, 20, 0.0), (4, 3, 20, 0.0), (4, 9, 40, 0.2), (4, None, 20, 0.0)],
)
def test_other_threads_hold_it_up_while_it_neither_runs_nor_waits_for_a_core(
    own: int, process: int | None, queued: int, share: float
) -> None:
    capture = steps(elapsed=100, queued=queued, cpu=own, median=10)
    capture["recorded_steps"]["process_cpu_ns"] = process
    assert held_up_share(capture) == pytest.approx(share)


@pytest.mark.parametrize(
    ("used", "queued", "each", "awaited", "share"),
    [
        (50, 30, [30, 30], 0.0, 2 / 3),  # 20 of 60 blocked
        (90, 30, [30, 30], 0.0, 1.0),
        (10, 10, [30, 30], 0.0, 0.0),
        (50, 30, [30, 30], 0.5, 0.5),
        (100, 0, [0], 0.0, 1.0),
        (99.5, 0, [0], 0.0, 0.5),
    ],
)
def test_between_steps_the_recorder_works(
    used: float, queued: int, each: list[int], awaited: float, share: float
) -> None:
    capture = steps(elapsed=100, queued=queued, cpu=4, median=10, used=used)
    capture["recorded_steps"]["each"] = {"elapsed_ns": each}
    assert active_share(capture | {"awaited": awaited}) == pytest.approx(share)


@pytest.mark.parametrize(
    ("queued", "later_cpu", "waits"),
    [(50, 9.5, True), (50, 9.4, False), (5, 10, False), (5.1, 10, True), (None, 10, False)],
)
def test_a_thread_waits_for_a_core_alone(queued: float | None, later_cpu: float, waits: bool) -> None:
    """It got less than 95 % of one, and is active for at least 95 % of later steps."""
    later = {"elapsed_ns": 100, "queued_ns": 0, "cpu_ns": later_cpu, "median_ns": 10}
    capture = steps(elapsed=100, queued=queued, cpu=5, median=10) | {"unrecorded_steps": later}
    assert waits_for_a_core(capture) is waits


def test_a_thread_may_be_blocked_more_later() -> None:
    busy, idle = (steps(elapsed=100, queued=0, cpu=cpu, median=10)["recorded_steps"] for cpu in (9, 4))
    assert later_blocked_share({"recorded_steps": busy, "unrecorded_steps": idle}) == pytest.approx(0.5)
    assert later_blocked_share({"recorded_steps": idle, "unrecorded_steps": busy}) == 0


@pytest.mark.parametrize(
    ("part", "active", "elsewhere", "blocked"),
    [
        (0.8, 0.3, 0.0, 0.7),
        (0.8, 0.1, 0.0, 0.8),
        (0.8, 0.3, 0.2, 0.5),
        (0.8, 0.3, 0.6, 0.5),  # at least what is not active of the part
        (0.6, 0.7, 0.0, 0.3),  # half of the part
        (0.6, 0.75, 0.0, 0.0),
        (0.2, 1.0, 0.0, 0.0),
    ],
)
def test_a_part_without_operators_is_blocked(
    part: float, active: float, elsewhere: float, blocked: float
) -> None:
    assert blocked_share(part, active, elsewhere) == pytest.approx(blocked)


@pytest.mark.parametrize(
    ("capture", "text"),
    [
        ({}, ""),
        (steps(elapsed=100, queued=5, cpu=5, median=10), ""),
        (
            steps(elapsed=30_000_000, queued=15_000_000, cpu=4_000_000, median=10_000_000),
            "this process got 50% of a core: other processes used the machine; a recorded step has 4 ms of "
            "CPU time in 10 ms",
        ),
        (
            steps(elapsed=100, queued=30, used=10),
            "this process got 25% of the cores that it could have used: other processes used the machine",
        ),
        (
            {**steps(elapsed=100, queued=30, used=10), "loaders": [{"workers": 4}, {"workers": 2}, {}]},
            "this process got 25% of the cores that it could have used: its 4 data-loader workers or other "
            "processes used the machine",
        ),
    ],
)
def test_load_of_other_processes_is_told(capture: dict[str, Any], text: str) -> None:
    assert load_warning(capture) == text


def test_parts_of_later_steps_are_by_name() -> None:
    assert later_parts({"unrecorded_steps": {"parts": {"forward": {}}}}) == {"forward": {}}
    assert later_parts({"unrecorded_steps": None}) == later_parts({"unrecorded_steps": {}}) == {}


STARTS = {
    **{"workers": 2, "datasets": 2, "starts": 6, "loaders": 6, "starting_ns": 500, "stopping_ns": 100},
    **{"waiting_ns": 400, "batches": 40, "first_ns": 180, "first": 6},
}


@pytest.mark.parametrize(
    ("changes", "restarts"),
    [
        ({}, (2, 4, True, 400, 480)),  # four of six starts: of 600 ns, and of 180 - 6 * 10 ns more
        ({"loaders": 2}, (2, 4, False, 400, 480)),
        ({"datasets": 9}, (2, 3, True, 300, 360)),  # at most three data sets live side by side
        ({"first_ns": 10}, (2, 4, True, 400, 400)),
        ({"batches": 0, "waiting_ns": 0}, (2, 4, True, 400, 520)),
        ({"starts": 2}, None),
        ({"starts": 3}, (2, 1, True, 200, 240)),
    ],
)
def test_workers_that_start_again_cost_their_starts_and_first_batches(
    changes: dict[str, int], restarts: tuple[object, ...] | None
) -> None:
    found = worker_restarts({"run_shares": {"worker_starts": STARTS | changes}})
    assert found == (restarts if restarts is None else pytest.approx(restarts))
    assert worker_restarts({"run_shares": None}) is None


@pytest.mark.parametrize(
    ("apart", "found"),
    [
        ({"host_ns": [1e6, 9e6, 2e6], "device_ns": [4e6, 6e6]}, (2.0, 5.0)),
        ({"host_ns": [], "device_ns": [4e6]}, None),
        ({"host_ns": [1e6]}, None),
        ({}, None),
    ],
)
def test_what_the_cpu_and_the_device_need_alone(
    apart: dict[str, list[float]], found: tuple[float, float] | None
) -> None:
    assert apart_ms({"unrecorded_steps": {"apart": apart}}) == found
    assert apart_ms({}) is None
