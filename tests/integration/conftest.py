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


@pytest.fixture
def jax_compiles_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX compiled in one test is there in others, for those that do not look at compiling.

    Not of another worker: JAX reads an entry while it is being written, and warns.
    """
    folder = tmp_path_factory.getbasetemp() / "jax"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
