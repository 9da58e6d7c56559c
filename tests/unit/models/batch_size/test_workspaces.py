"""Memory whose workspaces come and go with the size has a range from none to twice the largest."""

from __future__ import annotations

import pytest

from stepscope.models.batch_size.fit import fit_peaks

BATCHES = (1, 2, 4, 16, 128)
GIB = (0.9, 1.4, 2.1, 11.9, 50.4)  # at 16 a workspace of some 5 GiB; as a U-Net on an H200


@pytest.mark.parametrize(("batch", "measured"), [(8, 3.7), (32, 22.8), (64, 28.6)])
def test_the_range_holds_sizes_with_and_without_a_workspace(batch: int, measured: float) -> None:
    low, high = fit_peaks(BATCHES, GIB).range(batch)
    assert low <= measured <= high


def test_memory_without_workspaces_is_as_certain_as_it_was() -> None:
    model = fit_peaks(BATCHES, [1 + 0.4 * batch for batch in BATCHES])
    assert model.range(64) == pytest.approx((26.6, 26.6))
