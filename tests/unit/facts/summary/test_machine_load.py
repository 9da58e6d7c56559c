"""A machine that others use."""

import pytest

from stepscope.facts.summary.facts import Verdict
from stepscope.facts.summary.verdict import certain_share, under_load
from stepscope.trace.recorded_steps import active_share, core_share, later_blocked_share, load_warning

CPU = Verdict("cpu", 0.6, "The step is CPU-bound.")


def capture(queued_ns: int | None) -> dict[str, object]:
    times = {"median_ns": 10_000_000, "cpu_ns": 4_100_000, "elapsed_ns": 30_000_000}
    return {"recorded_steps": {**times, "queued_ns": queued_ns}}


@pytest.mark.parametrize(
    ("queued_ns", "share"), [(0, 1.0), (17_700_000, 0.41), (40_000_000, 0.41), (None, None)]
)
def test_the_share_of_a_core(queued_ns: int | None, share: float | None) -> None:
    assert core_share(capture(queued_ns)) == (share and pytest.approx(share))


def test_the_share_of_the_cores_that_threads_of_xla_got() -> None:
    """The thread that trains only waits for them."""
    times = {"median_ns": 10_000_000, "cpu_ns": None, "elapsed_ns": 30_000_000, "used_ns": 12_000_000}
    found = {"recorded_steps": {**times, "queued_ns": 36_000_000}}
    assert core_share(found) == 0.25
    assert load_warning(found) == (
        "this process got 25% of the cores that it could have used: other processes used the machine"
    )
    assert core_share({"recorded_steps": {**times, "queued_ns": None}}) is None


def test_a_loop_that_sleeps_is_blocked_however_busy_the_machine_is() -> None:
    """Steps of 28 ms sleep for 20 ms; between them the recorder works, and waits for a core, for 30 ms."""
    each = {"cpu_ns": [3_000_000] * 3, "elapsed_ns": [28_000_000] * 3}
    times = {"median_ns": 28_000_000, "cpu_ns": 3_000_000, "elapsed_ns": 3 * 58_000_000, "each": each}
    spent = {"used_ns": 3 * 15_000_000, "queued_ns": 3 * 23_000_000}
    assert active_share({"recorded_steps": {**times, **spent}}) == pytest.approx(8 / 28)


def test_a_loop_that_awaits_is_blocked_though_it_queues_for_a_core_when_it_wakes() -> None:
    """Steps of 70 ms, of which the event loop waits for 49 ms, and queues for a core for 60 ms."""
    times = {"median_ns": 70, "cpu_ns": 4, "elapsed_ns": 210, "queued_ns": 180, "used_ns": 12}
    assert active_share({"recorded_steps": times}) > 0.9
    assert active_share({"recorded_steps": times, "awaited": 0.7}) == pytest.approx(0.3)


def test_one_step_that_waited_for_a_core_says_nothing_of_the_others() -> None:
    """Three steps of 1 ms and one of 12 ms, in which the thread waited for 11 ms."""
    times = {"median_ns": 1_000_000, "cpu_ns": 990_000, "elapsed_ns": 15_000_000}
    assert core_share({"recorded_steps": {**times, "queued_ns": 11_000_000}}) == 0.99


@pytest.mark.parametrize(
    ("cpu_ns", "queued_ns", "share"),
    [
        (5_000_000, 0, 0.4),  # 9 of 10 ms in the recorded steps, 5 of 10 ms later
        (5_000_000, 80_000_000, 0.0),  # for 4 of 10 ms it waited for a core
        (9_500_000, 0, 0.0),
        (None, 0, 0.0),  # of JAX
    ],
)
def test_how_much_more_the_loop_is_blocked_after_the_recording(
    cpu_ns: int | None, queued_ns: int, share: float
) -> None:
    recorded = {"median_ns": 10_000_000, "cpu_ns": 9_000_000, "elapsed_ns": 30_000_000}
    later = {"median_ns": 10_000_000, "cpu_ns": cpu_ns, "elapsed_ns": 200_000_000}
    found = later_blocked_share(
        {
            "recorded_steps": {**recorded, "queued_ns": 0},
            "unrecorded_steps": {**later, "queued_ns": queued_ns},
        }
    )
    assert found == pytest.approx(share)
    assert later_blocked_share({}) == 0


def test_what_is_said_of_it() -> None:
    assert load_warning(capture(17_700_000)) == (
        "this process got 41% of a core: other processes used the machine; "
        "a recorded step has 4.1 ms of CPU time in 10 ms"
    )
    assert load_warning(capture(300_000)) == ""
    assert load_warning({}) == ""


@pytest.mark.parametrize(
    ("share", "bound_by", "text"),
    [
        (None, "cpu", "CPU-bound."),
        (0.99, "cpu", "CPU-bound."),
        (0.8, "cpu", "Other processes may be the cause"),
        (0.41, "unknown", "Cannot tell"),
    ],
)
def test_a_verdict_on_a_busy_machine(share: float | None, bound_by: str, text: str) -> None:
    found = under_load(CPU, share)
    assert (found.bound_by, text in found.sentence) == (bound_by, True)


def test_a_device_that_limits_the_step_does_so_on_any_machine() -> None:
    device = Verdict("device", 0.97, "The step is device-bound.")
    assert under_load(device, 0.2) == device


@pytest.mark.parametrize(
    ("part", "share", "bound_by", "least"),
    [
        (0.4, None, "cpu", 0.4),
        (0.4, 0.96, "cpu", 0.4),
        (0.4, 0.8, "cpu", 0.25),
        (0.1, 0.8, "cpu", 0.0),
        (1.0, 0.8, "cpu", 1.0),
        (0.4, 0.8, "device", 0.4),
        (0.9, 0.5, "unknown", 0.0),
    ],
)
def test_what_a_part_of_the_step_takes_at_least(
    part: float, share: float | None, bound_by: str, least: float
) -> None:
    """Of 10 ms, 4 are in a part; the process waited for 2, so at least 2 of 8 are."""
    found = certain_share(part, Verdict(bound_by, 0.5, ""), share)
    assert found == pytest.approx(least)
