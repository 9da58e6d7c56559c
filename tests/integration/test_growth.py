"""Work grows in proportion to every dimension of a trace: counted in calls, not in seconds.

`benchmarks/growth.py` fits exponents of CPU time. Here the Python calls of each command are
counted on a trace and on one that is four times as large in one dimension, which finds a loop in a
loop on any machine, however busy.
"""

from __future__ import annotations

import cProfile
import importlib.util
import pstats
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "growth.py"
spec = importlib.util.spec_from_file_location("growth", BENCHMARK)
assert spec is not None
assert spec.loader is not None
growth = importlib.util.module_from_spec(spec)
spec.loader.exec_module(growth)

SIZES = (50, 200, 800)
SHALLOW = (10, 40, 160)  # the path of a module names all that it is in
A_FEW = 20_000  # calls that do not grow: a finding more, or what recovers after malformed events


def calls(command: str, path: Path) -> int:
    profile = cProfile.Profile()
    profile.runcall(growth.COMMANDS[command], path)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


CASES = [
    *((command, dimension) for dimension in growth.DIMENSIONS for command in ("report", "analyze", "whatif")),
    *(("report --html", dimension) for dimension in ("threads", "operator names", "steps")),
]


@pytest.mark.full(every=2)
@pytest.mark.parametrize(("command", "dimension"), CASES)
def test_calls_grow_no_faster_than_the_trace(command: str, dimension: str, tmp_path: Path) -> None:
    make, _ = growth.DIMENSIONS[dimension]
    path = tmp_path / "trace.json"
    counts = []
    sizes = SHALLOW if dimension == "module depth" else SIZES
    for size in (sizes[0], *sizes):  # once more, as the first run imports and compiles
        growth.write(path, make(size))
        counts.append(calls(command, path))
    _, small, middle, large = counts
    assert large - middle <= 1.3 * 4 * max(middle - small, A_FEW), counts
