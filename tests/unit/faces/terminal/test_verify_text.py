"""What `stepscope verify` prints of a comparison."""

from __future__ import annotations

from stepscope.faces.terminal.verify import _lines
from stepscope.models.verify import MeasuredRuns, TrialComparison


def lines(before: tuple[float, ...], after: tuple[float, ...]) -> list[str]:
    sides = (MeasuredRuns(times, times, {}) for times in (before, after))
    return _lines(TrialComparison("train.py", ("compile",), *sides, 2.0, None, "only measured", {}, {}))


def test_several_rounds_have_a_spread() -> None:
    found = lines((10.0, 11.0, 12.0), (5.0, 5.0, 6.0))
    assert found[2] == "unchanged      11.000 ms per step, spread 18.2% over 3 alternating rounds"
    assert found[3] == "measured        5.000 ms, 2.20x, spread 20.0%"
    assert found[4] == "predicted  –  only measured"
    assert found[5].startswith("verdict    faster (")


def test_one_round_has_none() -> None:
    found = lines((10.0,), (5.0,))
    assert found[2] == "unchanged      10.000 ms per step, one round, spread unknown"
    assert found[3] == "measured        5.000 ms, 2.00x, one round, spread unknown"
    assert found[5] == "verdict    cannot tell: one round shows no noise; use more --rounds"


def test_what_the_noise_hides_is_not_called_wrong() -> None:
    found = lines((197.0, 180.0, 245.0), (200.0, 227.0, 246.0))
    assert found[3].startswith("measured      227.000 ms, 0.87x, spread 20.3%")
    assert found[5].startswith("verdict    cannot tell: the difference is within the noise (0.")
