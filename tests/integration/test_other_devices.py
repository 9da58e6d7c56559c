"""Predictions for other devices against real traces: the stated errors hold what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.other_devices import counted, scaled

from stepscope.models.devices.device_work import COUNTING_ERROR
from stepscope.models.whatif.parts.kernel_times import SCALING_ERROR


def test_scaled_kernels_are_within_the_stated_range(traces: Path) -> None:
    rows = list(scaled(traces))
    assert len(rows) == 7  # both directions of three pairs, and TF32 told where a trace cannot
    assert {row.how: row.factor for row in rows if row.factor > SCALING_ERROR} == {}


def test_counted_kernels_are_within_the_stated_range(traces: Path) -> None:
    rows = list(counted(traces))
    assert len(rows) == 8
    assert {row.how: row.factor for row in rows if row.factor > COUNTING_ERROR} == {}
