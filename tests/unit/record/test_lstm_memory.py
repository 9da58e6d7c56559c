"""What oneDNN's LSTM keeps for backward, against allocations recorded with PyTorch 2.13."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from stepscope.record.batch_size.kernel_workspace import kept_bytes


@pytest.mark.parametrize(
    ("steps", "samples", "inputs", "width", "recorded"),
    [
        (10, 8, 64, 64, 335_872),
        (20, 8, 64, 64, 647_168),
        (10, 16, 64, 64, 667_648),
        (10, 8, 128, 64, 471_040),
        (10, 8, 64, 128, 663_552),
        (10, 8, 96, 96, 503_808),
        (5, 8, 256, 256, 729_088),
        (5, 8, 512, 256, 1_024_000),
        (7, 3, 100, 50, 126_976),
        (5, 32, 1024, 1024, 11_239_424),
        (25, 16, 512, 512, 12_832_768),
    ],
)
def test_the_workspace_is_as_large_as_recorded(
    steps: int, samples: int, inputs: int, width: int, recorded: int
) -> None:
    assert kept_bytes(steps, samples, inputs, width) == recorded
