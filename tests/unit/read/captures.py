"""Captures written by hand."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

MANIFEST: dict[str, Any] = {
    "format": "stepscope capture",
    "version": 1,
    "framework": "pytorch",
    "framework_version": "2.13.0",
    "devices": [{"type": "cuda", "index": 0, "name": "NVIDIA H200"}],
    "rank": 0,
    "world_size": 1,
    "outcome": "complete",
    "message": "recorded steps 5 to 7 of 100",
    "warnings": [],
}
MODULES: dict[str, Any] = {
    "roots": [{"name": "model", "path": "", "class": "net.Net", "line": None, "children": []}]
}
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
TRACE: dict[str, Any] = {"schemaVersion": 1, "traceEvents": [EVENT]}


def write_capture(
    path: Path, manifest: Any = MANIFEST, modules: Any = MODULES, trace: Any = TRACE, **others: str
) -> Path:
    """Write a capture; a part that is None is left out, a string is written as it is."""
    parts = {"manifest.json": manifest, "modules.json": modules, "trace.json": trace, **others}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            if part is not None:
                archive.writestr(name, part if isinstance(part, str) else json.dumps(part))
    return path
