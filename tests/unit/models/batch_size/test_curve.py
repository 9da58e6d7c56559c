"""The batch sizes that a page offers."""

from __future__ import annotations

from stepscope.models.batch_size.entry_profile import make_profile
from stepscope.models.batch_size.entry_result import curve
from stepscope.models.batch_size.measurement import BatchPoint

# 1 ms a sample and 9 ms besides; 10 bytes a sample and 100 besides.
POINTS = [BatchPoint(batch, 1.0 * batch + 9.0, 10 * batch + 100) for batch in (8, 16, 32)]


def sizes(batch=16, too_large=None, capacity=None):
    profile = make_profile(POINTS, too_large, {}, [])
    return [row["batch"] for row in curve(profile, batch, None, capacity)]


def test_every_size_up_to_four_times_what_was_measured():
    assert sizes() == list(range(1, 129))


def test_no_size_that_does_not_fit():
    assert sizes(too_large=40)[-1] == 39
    assert sizes(capacity=600)[-1] == 50


def test_many_sizes_are_thinned_but_for_those_that_matter():
    found = sizes(batch=999)
    assert len(found) < 300
    assert {1, 8, 16, 32, 999} <= set(found)
    assert found[-1] > 3900


def test_a_row_is_a_prediction():
    profile = make_profile(POINTS, None, {}, [])
    row = next(row for row in curve(profile, 16) if row["batch"] == 91)
    assert round(row["throughput"]) == 910
    assert row["bytes"] == 1010
