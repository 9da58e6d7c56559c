"""Which batch sizes are offered."""

from __future__ import annotations

from stepscope.models.batch_size.entry_profile import make_profile, suggestions
from stepscope.models.batch_size.measurement import BatchPoint

# 1 ms a sample and 9 ms besides; 10 bytes a sample and 100 besides.
POINTS = [BatchPoint(batch, 1.0 * batch + 9.0, 10 * batch + 100) for batch in (8, 16, 32, 64)]


def offered(capacity=None, too_large=None):
    profile = make_profile(POINTS, too_large, {}, [])
    return [one["batch"] for one in suggestions(profile, 32, capacity)]


def test_near_the_limit_then_twice_and_half():
    assert offered() == [81, 64, 16]  # 81 of 90 ms is 90 % of the limit


def test_nothing_beyond_what_fits():
    assert offered(capacity=600) == [50, 16]
    assert offered(capacity=1e9) == [81, 64, 16]  # no line may be trusted that far
    assert offered(too_large=40) == [39, 16]


def test_what_is_offered_is_predicted():
    profile = make_profile(POINTS, None, {}, [])
    first = suggestions(profile, 32)[0]
    assert round(first["throughput"]) == 900
    assert first["bytes"] == 910
