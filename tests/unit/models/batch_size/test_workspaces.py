"""Memory is the greatest of a line per stage; workspaces come and go with the size on top of it."""

from __future__ import annotations

import pytest

from stepscope.models.batch_size.fit import fit_peaks, memory_warnings

BATCHES = (1, 2, 4, 16, 128)
GIB = (0.9, 1.4, 2.1, 11.9, 50.4)  # at 16 a workspace of some 5 GiB; as a U-Net on an H200


@pytest.mark.parametrize(("batch", "measured"), [(8, 3.7), (32, 22.8), (64, 28.6)])
def test_the_range_holds_sizes_with_and_without_a_workspace(batch: int, measured: float) -> None:
    low, high = fit_peaks(BATCHES, GIB).range(batch)
    assert low <= measured <= high


@pytest.mark.parametrize(("batch", "workspace"), [(8, 0), (32, 6), (64, 6)])
def test_a_workspace_is_taken_until_the_next_size_that_was_measured(batch: int, workspace: int) -> None:
    sizes = (1, 4, 16, 128, 256)
    model = fit_peaks(sizes, [2 + size + (6 if size == 16 else 0) for size in sizes])
    assert model.at(batch) == pytest.approx(2 + batch + workspace)
    assert model.least(batch) == pytest.approx(2 + batch)
    assert model.workspace == pytest.approx(6)


def test_the_largest_size_leaves_no_room_for_a_workspace() -> None:
    model = fit_peaks(BATCHES, GIB)
    assert model.at(160) == pytest.approx(50.4 + 32 * 49.5 / 127)
    assert "more than tensors need" in memory_warnings(model)[0]


def test_two_points_say_nothing_of_larger_sizes_where_others_take_as_large_a_workspace() -> None:
    sizes = (4, 8, 16, 24, 28, 32)  # of a Transformer in JAX
    model = fit_peaks(sizes, (43.262, 57.557, 98.007, 132.527, 150.246, 169.636))
    assert model.at(72) == pytest.approx(351.3, rel=0.02)
    assert fit_peaks(sizes, (43.262, 57.557, 96, 132.527, 150.246, 174)).slope == pytest.approx(23.754 / 4)


def test_at_the_small_end_the_optimizer_holds_the_peak_until_the_next_stage_does() -> None:
    sizes = (2, 16, 32, 64, 128)
    model = fit_peaks(sizes, [max(1500, 950 + 58 * size) for size in sizes])
    assert [model.at(size) for size in (4, 8, 12)] == pytest.approx([1500, 1500, 950 + 58 * 12])
    assert not model.workspace


@pytest.mark.parametrize("values", [(100, 90, 90, 90, 90), (90, 90, 90, 90, 100), (5, 9, 7, 9, 7), (0,) * 5])
def test_memory_that_hardly_grows_has_a_model(values: tuple[int, ...]) -> None:
    model = fit_peaks((1, 2, 4, 8, 16), values)
    for batch, value in zip(model.batches, values, strict=True):
        low, high = model.range(batch)
        assert low - 1 <= value <= high + 1


def test_memory_without_workspaces_is_as_certain_as_it_was() -> None:
    model = fit_peaks(BATCHES, [1 + 0.4 * batch for batch in BATCHES])
    assert model.range(64) == pytest.approx((26.6, 26.6))
