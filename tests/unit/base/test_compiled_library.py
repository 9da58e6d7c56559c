"""The compiled library is used where it was built from these sources, else an error helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.base.compiled import build
from stepscope.base.compiled import library as compiled
from stepscope.errors import StepscopeError


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing of the library that another test loaded, nor of this one afterwards."""
    for cached in (compiled.function, compiled._library):
        cached.cache_clear()
    yield
    for cached in (compiled.function, compiled._library):
        cached.cache_clear()


def test_a_function_of_the_library_is_found() -> None:
    assert compiled.function("stepscope_simulate")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("content", [None, b"not a library"])
def test_without_the_library_one_line_says_what_to_do(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "libstepscope.so"
    if content:
        path.write_bytes(content)
    monkeypatch.setattr(compiled, "LIBRARY", path)
    with pytest.raises(StepscopeError, match=r"is missing or damaged .*install a C\+\+ compiler"):
        compiled.function("stepscope_simulate")


@pytest.mark.usefixtures("fresh")
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "fingerprint", lambda: 7)
    with pytest.raises(StepscopeError, match="was built from other sources"):
        compiled.function("stepscope_simulate")


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "libstepscope.so").write_bytes(b"of an earlier version")
    assert build.build(tmp_path / "libstepscope.so").startswith("no C++ compiler was found")
    assert not (tmp_path / "libstepscope.so").exists()
