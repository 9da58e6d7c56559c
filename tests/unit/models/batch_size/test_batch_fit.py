"""Models of run time and memory on points that lie where they should."""

from __future__ import annotations

import pytest

from stepscope.models.batch_size.fit import fit_line, fit_model, fit_peaks, fit_time_line, student


def test_points_on_a_line_give_back_the_line() -> None:
    line = fit_line([8, 12, 16], [2 * x + 5 for x in (8, 12, 16)])
    assert line.slope == pytest.approx(2)
    assert line.intercept == pytest.approx(5)


def test_least_squares_splits_the_difference() -> None:
    line = fit_line([0, 1, 2], [0, 3, 0])
    assert (line.slope, line.intercept) == pytest.approx((0, 1))


def test_no_step_takes_less_than_no_time() -> None:
    assert fit_time_line([1, 2, 3], [1, 3, 5]).intercept == 0
    assert fit_time_line([1, 2, 3], [5, 4, 3]).slope == 0


def test_an_exact_line_has_no_band_and_noise_widens_it_away_from_the_middle() -> None:
    exact = fit_model([10, 20, 30], [15, 25, 35])
    assert exact.range(100) == pytest.approx((105, 105))
    noisy = fit_model([10, 20, 30], [15, 26, 34], [1, 1, 1], [5, 5, 5])
    middle, far = (high - low for low, high in (noisy.range(20), noisy.range(100)))
    assert 0 < middle < far


def test_a_range_is_never_narrower_than_the_error_on_the_point_held_back() -> None:
    from dataclasses import replace

    model = replace(fit_model([10, 20, 30], [10, 20, 30]), own_error=0.1)
    assert model.range(50) == pytest.approx((45, 55))


def test_run_time_bends_where_another_kernel_begins() -> None:
    batches = [1, 2, 3, 4, 8, 16, 32]
    values = [10, 11, 12, 13, 40, 80, 160]
    model = fit_model(batches, values)
    assert [piece.start for piece in model.pieces] == [1, 4, 8]
    assert model.slope == pytest.approx(5)
    assert model.at(64) == pytest.approx(320)
    assert model.at(2) == pytest.approx(11)


def test_beyond_a_step_at_the_end_a_sample_takes_as_long_as_there() -> None:
    batches = [4, 8, 16, 24, 32, 64, 80]
    values = [400, 800, 900, 1300, 1700, 5500, 6800]
    model = fit_model(batches, values)
    assert [piece.start for piece in model.pieces] == [4, 8, 16, 32, 64, 80]
    assert model.at(20) == pytest.approx(1100)
    assert model.at(160) == pytest.approx(2 * 6800)


def test_beyond_a_line_that_would_begin_below_no_time_it_is_one_that_begins_at_none() -> None:
    model = fit_model([2, 4, 16, 18, 20, 22], [800, 1600, 800, 1000, 1200, 1400])
    assert model.at(17) == pytest.approx(900)
    assert 50 < model.at(44) / 44 < 1400 / 22


def test_run_time_that_would_begin_below_none_stays_above() -> None:
    model = fit_model([8, 16, 24, 32, 40], [50, 150, 250, 350, 450])
    assert (model.at(12), model.at(36)) == pytest.approx((100, 400))
    assert 0 < model.at(1) < 50
    assert not model.bends


def test_what_scatter_explains_is_no_second_line() -> None:
    batches, values = [8, 16, 24, 32, 40], [80, 160, 290, 380, 480]
    assert not fit_model(batches, values).linear
    assert fit_model(batches, values, tolerance=0.2).linear


def test_a_small_miss_stays_one_line() -> None:
    assert fit_model([1, 2, 3, 4, 5], [10.0, 20.1, 29.9, 40.2, 49.8]).linear


def test_memory_follows_the_peak_to_another_place_in_the_step() -> None:
    batches = [8, 12, 16, 24, 32]
    values = [max(100 + 2 * x, 40 + 6 * x) for x in batches]
    model = fit_peaks(batches, values)
    assert (model.pieces[0].slope, model.slope) == pytest.approx((2, 6))
    assert model.at(64) == pytest.approx(40 + 6 * 64)


def test_memory_rounded_up_is_still_one_line_behind_the_place_where_the_peak_moves() -> None:
    batches = [4, 16, 24, 32, 36, 40]  # as measured: an LSTM translator
    values = [116882928, 163163604, 204607156, 245964692, 266758148, 287408244]
    model = fit_peaks(batches, values)
    assert len(model.pieces) == 2
    assert [model.at(size) for size in batches] == pytest.approx(values, rel=0.001)
    assert model.at(72) == pytest.approx(453059572, rel=0.001)


def test_memory_whose_slope_falls_stays_one_line() -> None:
    assert fit_peaks([1, 2, 3], [10, 30, 35]).linear


def test_student_narrows_with_freedom() -> None:
    assert student(1) > student(2) > student(20) > student(1000) == 1.96
