"""Sentences that once said more than was known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepscope.faces.terminal.verify import _agreement, _error
from stepscope.models.batch_size.fit import Model, Piece


@pytest.mark.parametrize(
    ("measured", "speedup", "text"),
    [
        (70.0, 1.43, ", as predicted"),
        (75.0, 1.33, ", as predicted"),  # within a tenth of the range
        (95.0, 1.05, ", as predicted, but by less"),
        (40.0, 2.5, ", as predicted, but by more"),
    ],
)
def test_the_right_direction_may_be_far_off(measured: float, speedup: float, text: str) -> None:
    prediction = SimpleNamespace(range=(65.0, 70.0))
    after = SimpleNamespace(step_ms=measured)
    answer = SimpleNamespace(
        verdict="confirmed", prediction=prediction, after=after, measured_speedup=speedup
    )
    assert _agreement(answer) == text


def test_an_error_says_which_of_both_is_longer() -> None:
    assert _error(0.548) == "54.8% longer than measured"
    assert _error(-0.1) == "10.0% shorter than measured"


@pytest.mark.parametrize(("slope", "noise", "is_certain"), [(1.0, 0.1, True), (0.01, 2.0, False)])
def test_a_limit_within_the_noise_is_none(slope: float, noise: float, is_certain: bool) -> None:
    batches = (8.0, 16.0, 32.0, 64.0)
    values = tuple(10 + slope * batch for batch in batches)
    model = Model((Piece(1.0, slope, 10.0),), batches, values, noise, 2)
    assert model.has_certain_slope is is_certain
