"""The page about batch sizes, as `stepscope batch --html` writes it: its rows without a mouse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench

from stepscope.serve.batch_page import ELEMENT
from stepscope.serve.bundle import page_in_one


def _prediction(batch: int) -> dict[str, Any]:
    return {"batch": batch, "ms": batch + 9.0, "ms_range": [batch, batch + 18],
            "throughput": 1000 * batch / (batch + 9), "throughput_range": [0, None],
            "bytes": 100 + 10 * batch}  # fmt: skip


def _node(name: str, ms: float, *children: dict[str, Any], line: int | None = None) -> Any:
    return {"name": name, "kind": "module" if children else "operator", "ms": ms,
            "forward_ms": ms, "backward_ms": 0, "bytes": 0, "self_ms": 0, "self_bytes": 0,
            "calls": 1, "file": "/p/net.py" if line else None, "line": line,
            "children": list(children)}  # fmt: skip


_NET = _node("net", 6, _node("aten::conv2d", 4, line=5), line=3)
_ANSWER = {
    "entry": "train.py", "batch": 32, "sentence": "batch_size=32", "points": [],
    "site": {"path": "/p/train.py", "line": 20, "name": "batch_size", "text": "32"},
    "max_throughput": None, "fit_error": None, "memory_fit_error": None, "too_large": None,
    "capacity": None, "device": {}, "warnings": [], "now": _prediction(32), "suggestions": [],
    "curve": [_prediction(one) for one in (16, 32, 64)],
    "breakdown": {"batch": 32, "step_ms": 10, "peak_bytes": 420, "memory": {},
                  "tree": _node("step", 10, _NET, _node("overhead", 1))},
}  # fmt: skip


@pytest.fixture
def page(workbench: Workbench, tmp_path: Path) -> Any:
    data = f'<script type="application/json" id="{ELEMENT}">{json.dumps(_ANSWER)}</script>'
    file = tmp_path / "batch.html"
    file.write_text(page_in_one(data, "batch.html"))
    workbench.open(file.as_uri(), shown=".breakdown li")
    return workbench.page


def test_a_row_that_does_something_is_a_button_in_a_list(page: Any) -> None:
    rows = page.get_by_label("Breakdown").get_by_role("listitem")
    assert rows.count() == 2
    buttons = rows.get_by_role("button")
    assert [" ".join(text.split()) for text in buttons.all_inner_texts()] == [
        "net net.py:3 6.00 ms 60 %"
    ]


def test_enter_opens_what_is_inside_a_row(page: Any) -> None:
    page.get_by_role("button", name="net.py:3").press("Enter")
    page.get_by_role("button", name="conv2d").wait_for()
    assert page.get_by_label("Breadcrumbs").locator("strong").inner_text() == "net"
