"""A recording opened in the editor: its flame graph and findings, whose lines lead to the source."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

_US = 1000  # of each of the three steps


def _write_recording(script: Path) -> str:
    """A capture in which line 12 of the script takes most of each step; its name."""
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": step * _US + begin, "dur": length, "name": name, "cat": kind}
        | {"args": arguments}
        for step in range(3)
        for begin, length, name, kind, arguments in (
            (0, _US, f"ProfilerStep#{step}", "user_annotation", {}),
            (50, 900, f"{script}(12): forward", "python_function", {"Python id": step + 1}),
            (100, 800, "aten::mm", "cpu_op", {}),
        )
    ]
    manifest = {
        "format": "stepscope capture",
        "version": 1,
        "framework": "pytorch",
        "devices": [],
        "warnings": [],
        "outcome": "complete",
        "message": "recorded steps 0 to 2",
    }
    file = script.with_name("run.stepscope")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("trace.json", json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return file.name


def test_a_box_of_a_recordings_flame_graph_leads_to_its_line(editor: Any) -> None:
    editor.show(_write_recording(editor.file))
    try:
        page = editor.panel  # the only web page that is open
        page.locator("#tab-flame").click()
        boxes = page.locator(".flame-frame")
        for _ in ("main", "step", "forward"):
            boxes.press("ArrowDown")
        editor.look("recording")
        page.locator(".flame-chosen .chip", has_text="train.py:12").click()
        expect(editor.page.locator(".line-numbers.active-line-number")).to_have_text("12")
    finally:
        editor.command("View: Close All Editors")
        editor.open("train.py")
