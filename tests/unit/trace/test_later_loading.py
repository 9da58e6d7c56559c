"""How long the steps after a recording waited for data, from what its manifest has."""

from __future__ import annotations

import pytest

from stepscope.trace.recorded_steps import later_loading


def manifest(**ns: int | None) -> dict[str, object]:
    return {"unrecorded_steps": {"parts": {name: {"recurring_ns": one} for name, one in ns.items()}}}


def test_the_wait_is_a_share_of_all_parts() -> None:
    later = later_loading(manifest(data_loading=6_000_000, forward=1_000_000, rest=1_000_000))
    assert later is not None
    assert (later.ms, later.step_ms, later.share) == (6, 8, 0.75)


def test_steps_without_length_wait_for_nothing() -> None:
    later = later_loading(manifest(data_loading=0, rest=0))
    assert later is not None
    assert later.share == 0


@pytest.mark.parametrize(
    "capture",
    [
        {},
        {"unrecorded_steps": None},
        {"unrecorded_steps": {"parts": {}}},
        manifest(rest=1),
        {"unrecorded_steps": {"parts": {"data_loading": {"median_ns": 5}}}},
        manifest(data_loading=5, rest=None),
    ],
)
def test_it_is_unknown_where_it_was_not_measured(capture: dict[str, object]) -> None:
    assert later_loading(capture) is None


@pytest.mark.parametrize(("active_ns", "ms"), [(9_600_000, 1.0), (5_000_000, 6.0)])
def test_of_a_thread_that_only_waits_for_a_core_it_is_the_cpu_time(active_ns: int, ms: float) -> None:
    parts = {"data_loading": (6_000_000, 1_000_000), "rest": (4_000_000, 1_500_000)}
    times = {"elapsed_ns": 10_000_000, "median_ns": 10_000_000, "cpu_ns": 2_500_000}
    each = {name: {"recurring_ns": slow, "cpu_ns": cpu} for name, (slow, cpu) in parts.items()}
    later = {**times, "queued_ns": active_ns - 2_500_000, "parts": each}
    loading = later_loading({"recorded_steps": {**times, "queued_ns": 7_500_000}, "unrecorded_steps": later})
    assert loading is not None
    assert loading.ms == ms
