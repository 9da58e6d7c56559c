"""When files are read by processes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from stepscope.base import parallel


@pytest.mark.parametrize(
    ("files", "size", "processes"), [(100, 100, 0), (600, 100, 2), (10_000, 100, 4), (2, 40 << 20, 2)]
)
def test_many_tiny_files_are_worth_processes_as_a_few_large_ones_are(
    files: int, size: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 4)
    pool = parallel._processes(dict.fromkeys(range(files), size))
    assert (pool._max_workers if isinstance(pool, ProcessPoolExecutor) else 0) == processes
