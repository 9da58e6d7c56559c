"""Several threads parse Python at once."""

from __future__ import annotations

import ast
import gc
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from stepscope.base.syntax_trees import loops_carry, parse_source

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


def parse_at_depth(depth: int, parse: Callable[[str], ast.AST] = parse_source) -> int:
    if depth:
        return parse_at_depth(depth - 1, parse)
    return sum(len(list(ast.iter_child_nodes(parse(NESTED)))) for _ in range(PARSES))


@pytest.mark.main
@pytest.mark.usefixtures("threads_switch_in_trees")
def test_threads_at_different_depths_parse_at_once():
    with ThreadPoolExecutor(6) as threads:
        counts = list(threads.map(parse_at_depth, range(0, 42, 7)))
    assert counts == [PARSES * 60] * 6


@pytest.mark.usefixtures("threads_switch_in_trees")
def test_other_parsers_of_the_process_do_not_disturb():
    def of_another_library(depth: int) -> None:
        with suppress(SystemError):
            parse_at_depth(depth, ast.parse)

    with ThreadPoolExecutor(6) as threads:
        others = threads.map(of_another_library, range(0, 42, 14))
        counts = list(threads.map(parse_at_depth, range(7, 42, 14)))
        list(others)
    assert counts == [PARSES * 60] * 3


LOOPS = """
def forward(rows, h):
    outs = [net(row) for row in rows]
    for row in rows:
        total = total + net(row)
        for i in range(3):
            h = self.cell(row, h)
        grown = grow(row)
        outs.append(head(grown))
    for row in rows:
        self.h = net(row, self.h)
    while h.ready():
        out = torch.cat([head(x) for x in rows])
    return net(h)

for batch in loader:
    for row in batch:
        loss += net(row)
    loss.backward()
"""


@pytest.mark.parametrize(
    ("line", "carry"),
    [
        (2, []),  # the function itself
        (3, [False]),
        (5, [True]),  # of all that the outer loop calls with h
        (7, [True, True]),
        (11, [True]),
        (13, [False, False]),
        (14, []),
        (18, [False]),
        (19, []),
        (99, []),
    ],
)
def test_a_loop_whose_iterations_need_the_last_one_is_known_from_its_names(
    line: int, carry: list[bool]
) -> None:
    assert loops_carry(parse_source(LOOPS), line) == carry


def test_what_an_iteration_sets_before_it_uses_it_is_its_own() -> None:
    tasks = "for task in tasks:\n    fast = adapt(task)\n    outs.append(net(fast))"
    assert loops_carry(parse_source(tasks), 3) == [False]
