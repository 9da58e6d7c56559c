"""What the tests of all interfaces share."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.trace import query_process


@pytest.fixture(autouse=True)
def queries_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query needs no process of its own, which takes 0.3 s, but in tests of such processes."""
    if request.node.get_closest_marker("main"):
        return

    def run(folder: Path, *_: object) -> int:
        query_process.main(folder)
        return 0

    monkeypatch.setattr(query_process, "_limit", lambda limits: None)
    monkeypatch.setattr(query_process, "_run", run)
