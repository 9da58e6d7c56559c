"""Energy of a sample, from the power of several rounds."""

from __future__ import annotations

import pytest

from stepscope.models.batch_size.measurement import BatchPoint, MeasuredBatch, combine


def measured(watts: float | None, samples: float = 8) -> MeasuredBatch:
    power = {"watts": watts, "source": "NVML"} if watts else None
    return MeasuredBatch(8, (20.0, 20.0), 100, {"power": power, "samples": [samples]})


def test_a_sample_takes_its_share_of_the_power() -> None:
    point = combine([measured(300), measured(100), measured(200)])
    assert point.watts == 200
    assert point.joules == pytest.approx(200 * 0.020 / 8)
    assert point.to_json()["joules"] == point.joules


def test_samples_count_as_observed() -> None:
    point = combine([measured(200, samples=32)])  # four batches a step
    assert point.joules == pytest.approx(200 * 0.020 / 32)


def test_rounds_without_a_reading_do_not_count() -> None:
    assert combine([measured(None), measured(200)]).watts == 200
    assert combine([measured(None)]).joules is None
    assert BatchPoint(8, 20.0, 100).to_json()["watts"] is None
