"""`padding`: positions of batches that hold no data, as the recorder found them."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import found

STEP = """
    main | 0   1000 | ProfilerStep#0
    main | 0    100 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 100  500 | aten::linear | seq=1
    main | 500  900 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
    main | 900 1000 | Optimizer.step#SGD.step
"""


def loader(padded: int, behind_all: int, **more: Any) -> dict[str, Any]:
    return {"workers": 0, "positions": 1000, "padded": padded, "behind_all": behind_all, **more}


COLLATE = {"collate": "pad_all", "collate_file": "/home/me/data.py", "collate_line": 12}


@pytest.mark.parametrize(
    ("padded", "behind_all", "says", "gain_ms"),
    [
        (500, 400, "50% of the positions in a batch are padding. In 40% no sample", 0.4 * 0.8),
        (300, 100, "30% of the positions in a batch are padding.", 0.3 * 0.8),
    ],
)
def test_less_is_computed_without_padding(padded: int, behind_all: int, says: str, gain_ms: float) -> None:
    finding = found("padding", STEP, capture={"loaders": [loader(padded, behind_all, **COLLATE)]})
    assert finding is not None
    assert finding.what.startswith(says)
    assert ("each batch only to the longest" in finding.advice) == (behind_all > 0)
    assert finding.gain.ms == pytest.approx(gain_ms)
    low, high = finding.gain.stated_ms
    assert (low, high) == pytest.approx((gain_ms / 2, 1.15 * padded / 1000 * 0.8))
    assert finding.evidence[0].file == "/home/me/data.py"


@pytest.mark.parametrize(
    ("loaders", "text"),
    [
        ([loader(190, 100)], STEP),
        ([{"workers": 0}], STEP),
        ([loader(500, 400)], STEP + "main | 110 120 | aten::_pack_padded_sequence"),
    ],
    ids=["little", "unknown", "packed"],
)
def test_silent(loaders: list[dict[str, Any]], text: str) -> None:
    assert found("padding", text, capture={"loaders": loaders}) is None
