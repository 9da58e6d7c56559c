"""A capture of a training step whose optimizer is created in one known call."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

CALL = "torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)"
WHERE = ("/home/me/train.py", 31)
_CREATED = {
    "what": "optimizer",
    "class": "AdamW",
    "file": WHERE[0],
    "line": WHERE[1],
    "call": CALL,
    "source": f"optimizer = {CALL}",
}
_MANIFEST = {
    "format": "stepscope capture",
    "version": 1,
    "outcome": "complete",
    "contains": ["trace"],
    "message": "",
    "framework": "pytorch",
    "framework_version": "2.13.0",
    "created": [_CREATED],
}
_STEP_US, _UPDATES = 1000, 120


def write_patched_capture(path: Path) -> Path:
    """Three steps on a CPU, mostly of an AdamW that updates weights one by one."""
    events = [event for step in range(3) for event in _step(step, step * _STEP_US)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(_MANIFEST))
        archive.writestr("trace.json", json.dumps({"traceEvents": events}))
    return path


def _step(step: int, at: int) -> list[dict[str, object]]:
    update = [("aten::mul_", "cpu_op", 250 + 5 * one, 4) for one in range(_UPDATES)]
    return [
        {"ph": "X", "name": name, "cat": kind, "pid": 1, "tid": 1, "ts": at + ts, "dur": us}
        for name, kind, ts, us in (
            (f"ProfilerStep#{step}", "user_annotation", 0, _STEP_US),
            ("aten::mm", "cpu_op", 10, 200),
            ("Optimizer.step#AdamW.step", "user_annotation", 240, 700),
            *update,
        )
    ]
