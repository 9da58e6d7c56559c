"""What a caching allocator holds beyond what tensors take, over the batch size."""

from __future__ import annotations

import pytest

from stepscope.models.batch_size.entry_profile import Profile, make_profile
from stepscope.models.batch_size.measurement import UNMEASURED, BatchPoint, Reserve

GB = 10**9


def profile(ratios: dict[int, float], device: str = "cuda") -> Profile:
    """1 GB a sample, and what was reserved of it."""
    points = [BatchPoint(x, 10.0 * x, x * GB, reserved=round(x * GB * r)) for x, r in ratios.items()]
    return make_profile(points, device={"type": device})


def test_the_ratio_is_interpolated_and_its_range_is_that_of_its_neighbors() -> None:
    one = profile({4: 1.1, 16: 1.2, 64: 1.3})
    found = one.predict(8)
    assert found["reserved"] == pytest.approx(8 * GB * 1.15)
    assert found["reserved_range"] == pytest.approx([8 * GB * 1.05, 8 * GB * 1.25])


@pytest.mark.parametrize(
    ("ratios", "fits"),
    [
        ({4: 1.1, 16: 1.1, 64: 1.1}, 72),  # 80 / 1.1
        ({4: 1.0, 16: 1.0, 64: 1.6}, 80),  # a full device returns what is not in use
        ({4: 1.5, 16: 1.5, 64: 1.0}, 80),
        ({4: 0.0, 16: 0.0, 64: 0.0}, 72),  # not measured: 1.1
    ],
)
def test_what_fits_counts_what_is_reserved(ratios: dict[int, float], fits: int) -> None:
    assert profile(ratios).batch_for_bytes(80 * GB) == fits


def test_a_cpu_reserves_nothing_and_a_device_not_measured_has_the_range_of_others() -> None:
    on_cpu = profile({4: 0.0, 16: 0.0, 64: 0.0}, "cpu")
    assert on_cpu.batch_for_bytes(80 * GB) == 80
    assert "reserved" not in on_cpu.predict(8)
    assert Reserve().range(8) == UNMEASURED[1:]
