"""The benchmark of the page runs and fills its table; no time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_the_benchmark_of_the_page_runs(chromium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "view.py"
    small = ["--slices", "20000", "--rounds", "1", "--drills", "2", "--bars", "1000"]
    monkeypatch.setenv("STEPSCOPE_CHROMIUM", chromium)
    done = subprocess.run(
        [sys.executable, str(script), *small, "--seconds", "0.4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for name in ("first useful paint", "drill-down painted", "hovering", "resizing", "1000 bars"):
        assert name in done.stdout
