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
