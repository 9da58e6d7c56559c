"""The compiled library: used where it was built from these sources, and not where it was not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compiled import build
from stepscope.compiled import library as compiled
from stepscope.ranks.replay import compiled_longest_path, longest_path_in_python


def test_a_function_of_the_library_is_found(library: Path) -> None:
    assert compiled.function("stepscope_simulate", library)
    assert compiled.function("no_such_function", library) is None


def test_no_library_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "libstepscope.so").write_bytes(b"not a library")
    assert compiled.function("stepscope_simulate", tmp_path / "missing.so") is None
    assert compiled.function("stepscope_simulate", tmp_path / "libstepscope.so") is None


def test_a_library_of_other_sources_is_not_used(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncached = compiled.function.__wrapped__
    assert uncached("stepscope_simulate", library)
    monkeypatch.setattr(compiled, "fingerprint", lambda: 7)
    assert uncached("stepscope_simulate", library) is None


def test_it_can_be_switched_off(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", "off")
    assert compiled.function.__wrapped__("stepscope_simulate", library) is None


def test_without_a_compiler_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "libstepscope.so").write_bytes(b"of an earlier version")
    assert build.build(tmp_path / "libstepscope.so").startswith("no C++ compiler was found")
    assert not (tmp_path / "libstepscope.so").exists()


EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(-5, 5)), max_size=30)


@given(ready=st.lists(st.floats(-9, 9), min_size=10, max_size=10), edges=EDGES)
def test_both_longest_paths_are_one(
    library: Path, ready: list[float], edges: list[tuple[int, int, float]]
) -> None:
    """Also where cycles block some nodes."""
    source, target, delay = (
        np.array([edge[part] for edge in sorted(edges)], kind)
        for part, kind in enumerate((np.int64, np.int64, np.float64))
    )
    first = np.searchsorted(source, np.arange(11))
    graph = (np.array(ready), first, target, delay)
    compiled_times = compiled_longest_path(*graph, library)
    assert compiled_times is not None
    np.testing.assert_array_equal(compiled_times, longest_path_in_python(*graph))
