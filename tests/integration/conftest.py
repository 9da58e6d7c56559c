"""What the tests of whole runs share."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest


@pytest.fixture(autouse=True)
def built_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """One built collector for all tests, and for the next run of them: a build takes seconds.

    Its folder is named by all that it is made of, so an old one is never taken for a new one.
    """
    folder = Path(platformdirs.user_cache_dir("stepscope"), "native")
    monkeypatch.setenv("STEPSCOPE_BUILDS", str(folder))
