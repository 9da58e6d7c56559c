"""Pipelined jobs come from the graph's tests, jobs with planted faults from the benchmarks."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[3]
sys.path += [str(_TESTS / "unit" / "graph"), str(_TESTS.parent / "benchmarks")]
