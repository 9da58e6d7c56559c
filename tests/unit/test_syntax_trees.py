"""Several threads parse Python at once."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepscope.syntax_trees import parse_source

NESTED = "\n".join(f"x = {'[' * depth}{']' * depth}" for depth in (5, 20, 60) * 20)
PARSES = 20


@pytest.fixture
def threads_switch_in_trees() -> Iterator[None]:
    """The garbage collector runs while a tree is made, and lets another thread continue."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()

    def pause(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    gc.freeze()  # collections are short, so there can be many
    gc.callbacks.append(pause)
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(pause)
    gc.unfreeze()


def parse_at_depth(depth: int) -> int:
    if depth:
        return parse_at_depth(depth - 1)
    return sum(len(parse_source(NESTED).body) for _ in range(PARSES))


@pytest.mark.usefixtures("threads_switch_in_trees")
def test_threads_at_different_depths_parse_at_once():
    with ThreadPoolExecutor(6) as threads:
        counts = list(threads.map(parse_at_depth, range(0, 42, 7)))
    assert counts == [PARSES * 60] * 6
