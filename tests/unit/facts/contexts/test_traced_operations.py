"""Compiled operations are below the lines at which they were traced, fused ones below several."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.contexts.build_tree import build_contexts
from stepscope.facts.contexts.tree import ContextTree
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, ORIGINS
from stepscope.trace.shares import Shares
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

# The stack of `stepscope run` and of the script above the compiled function `step`.
STACK = [
    (-1, "main", "lib/stepscope/record/script_runner.py", 80),
    (0, "<module>", "train.py", 30),
    (1, "JitWrapped.__call__", "nnx.py", 5),
    (2, "step", "train.py", 20),
    (3, "Net.__call__", "model.py", 7),
    (4, "Block.__call__", "model.py", 3),
]
NET, BLOCK, STEP = 4, 5, 3
CALLS = """
    main | 0  9 | PjitFunction(step) | cat=runtime
    main | 20 29 | PjitFunction(step) | cat=runtime
"""


def frames(stack: list[tuple[int, str, str, int]]) -> Table:
    parents, functions, files, lines = zip(*stack, strict=True)
    columns = {"parent": parents, "function": Text.of(functions), "file": Text.of(files)}
    return Table(FRAMES, {**columns, "line": lines})


def origins(*groups: list[tuple[str, int, float]]) -> Table:
    rows = [row for group in groups for row in group]
    sizes = [len(group) for group in groups]
    starts = np.cumsum([0, *sizes[:-1]])
    scopes, numbers, shares = zip(*rows, strict=True)
    columns = {"first": np.repeat(starts, sizes), "scope": Text.of(scopes)}
    return Table(ORIGINS, {**columns, "frame": numbers, "share": shares})


def traced(text: str, *groups: list[tuple[str, int, float]], stack: list[Any] | None = None) -> Trace:
    """A drawn trace; an operation named `op-N` was made from the N-th group of origins."""
    trace = drawn_trace(CALLS + text)
    table = origins(*groups)
    first = np.unique(table["first"])
    names = [name or "" for name in trace.events.text("name")]
    number = [int(name[3:]) if name.startswith("op-") else -1 for name in names]
    origin = [int(first[n]) if n >= 0 else -1 for n in number]
    tables = {"origins": table, "frames": frames(stack or STACK)}
    trace = trace.with_events(origin=np.array(origin))
    for extra in tables.values():
        trace = trace.with_table(extra)
    return annotate(trace)


def own(tree: ContextTree, metric: str = "cpu_ns") -> dict[str, float]:
    """The own value in µs of each path below the call, that has one."""
    names, parent = list(tree.nodes.text("name")), tree.nodes["parent"].tolist()
    lines, via = tree.nodes["line"].tolist(), list(tree.nodes.text("via"))

    def label(node: int) -> str:
        line = f":{lines[node]}" if lines[node] > 0 else ""
        return f"{'↩' if via[node] == 'backward' else ''}{names[node]}{line}"

    def path(node: int) -> list[str]:
        return [*path(parent[node]), label(node)] if node >= 0 else []

    values = tree.metrics[metric].sum.tolist()
    return {"/".join(path(node)[1:]): value / 1000 for node, value in enumerate(values) if value}


def run(start: int, end: int, name: str, number: int) -> str:
    scope = "scope=jit(step)/tanh"
    return f"pool | {start} {end} | {name} | cat=cpu_op corr={number} {scope}\n"


CALL = "main/PjitFunction(step)/"


def test_an_operation_is_below_its_call_its_frames_and_what_was_traced() -> None:
    trace = traced(
        run(10, 14, "op-0", 1) + run(30, 36, "op-0", 2), [("jit(step)/jvp(Net)/dot_general", BLOCK, 1.0)]
    )
    found = own(build_contexts(trace))
    assert found == {
        "main/PjitFunction(step)": 18,
        CALL + "step:20/Net.__call__:7/Block.__call__:3/dot_general/op-0": 10,
    }


def test_backward_is_below_the_line_of_its_forward() -> None:
    trace = traced(
        run(10, 14, "op-0", 1) + run(14, 17, "op-1", 1),
        [("jit(step)/jvp(Net)/dot_general", NET, 1.0)],
        [("jit(step)/transpose(jvp(Net))/dot_general", NET, 1.0)],
    )
    found = own(build_contexts(trace))
    line = CALL + "step:20/Net.__call__:7/"
    assert (found[line + "dot_general/op-0"], found[line + "↩dot_general/op-1"]) == (4, 3)


def test_a_fused_operation_is_below_each_that_it_was_made_from() -> None:
    trace = traced(
        run(10, 20, "op-0", 1),
        [("jit(step)/add", NET, 0.2), ("jit(step)/tanh", BLOCK, 0.7), ("jit(step)/mul", STEP, 0.1)],
    )
    tree = build_contexts(trace)
    found = own(tree)
    assert found[CALL + "step:20/Net.__call__:7/add/op-0"] == pytest.approx(2)
    assert found[CALL + "step:20/Net.__call__:7/Block.__call__:3/tanh/op-0"] == pytest.approx(7)
    assert found[CALL + "step:20/mul/op-0"] == pytest.approx(1)
    (event,) = np.flatnonzero(trace.events.text("name").mask("op-0"))
    assert tree.nodes.text("name")[tree.nodes["parent"][tree.event_node[event]]] == "tanh"


def test_work_of_a_device_is_below_the_call_that_launched_it() -> None:
    text = """
        main     | 1 2   | cuLaunchKernel | corr=7
        stream 7 | 30 50 | op-0           | corr=7 scope=jit(step)/tanh
    """
    trace = traced(text, [("jit(step)/tanh", BLOCK, 0.5), ("jit(step)/add", NET, 0.5)])
    found = own(build_contexts(trace), "device_ns")
    line = CALL + "step:20/Net.__call__:7/"
    assert found == {line + "Block.__call__:3/tanh/op-0": 10, line + "add/op-0": 10}


def test_frames_of_another_function_begin_below_the_script_runner() -> None:
    trace = traced(run(10, 14, "op-0", 1), [("", BLOCK, 1.0)])
    (path,) = (path for path in own(build_contexts(trace)) if path.endswith("op-0"))
    assert "script_runner" not in path
    assert "main:80" not in path
    assert "<module>:30/JitWrapped.__call__:5/step:20" in path


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_any_fused_operations_add_up_exactly(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups = []
    for _ in range(8):
        share = generator.random(generator.integers(1, 9))
        share /= share.sum()
        lines = generator.choice([STEP, NET, BLOCK], len(share))
        groups.append([(f"jit(step)/op{n}", int(lines[n]), float(s)) for n, s in enumerate(share)])
    times = np.cumsum(generator.integers(1, 5_000, 40)) + 40
    text = "".join(
        run(int(begin), int(end), f"op-{generator.integers(8)}", 1 + k // 20)
        for k, (begin, end) in enumerate(pairwise(times))
    )
    trace = traced(text, *groups)
    tree = build_contexts(trace)
    rows: Any = trace.events["origin"] >= 0
    names = tree.nodes.text("name").where(lambda name: name.startswith("op-"))
    assert tree.metrics["cpu_ns"].sum[names].sum() == trace.events["self_ns"][rows].sum()
    assert tree.metrics["cpu_ns"].sum.sum() == trace.events["self_ns"].sum()


def test_shares_keep_the_values_of_events_that_are_whole() -> None:
    shares = Shares(np.array([4, 4, 6]), np.array([90, 4, 6]), np.array([0.5, 1.0, 1.0]))
    element, value = shares.spread(np.array([3, 4, 5, 6]), np.array([10, 7, 2, 5]))
    assert dict(zip(element.tolist(), value.tolist(), strict=True)) == {3: 10, 5: 2, 90: 3, 4: 4, 6: 5}


def test_loops_and_transformations_are_between_the_line_and_the_operation() -> None:
    trace = traced(
        run(10, 14, "op-0", 1) + run(14, 17, "op-1", 1),
        [("jit(step)/jvp()/while/body/closed_call/tanh", NET, 1.0)],
        [("jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/tanh", NET, 1.0)],
    )
    found = own(build_contexts(trace))
    line = CALL + "step:20/Net.__call__:7/"
    assert found[line + "scan/tanh/op-0"] == 4
    assert found[line + "↩scan/remat/tanh/op-1"] == 3


def test_frames_that_a_loop_repeats_are_there_once() -> None:
    stack = [
        *STACK[:5],
        (NET, "step", "train.py", 20),
        (5, "Net.__call__", "model.py", 7),  # the same as NET
        (6, "step", "train.py", 20),
        (7, "Net.__call__", "model.py", 7),
        (8, "body", "model.py", 2),
    ]
    trace = traced(
        run(10, 14, "op-0", 1) + run(14, 17, "op-1", 1),
        [("jit(step)/while/body/closed_call/tanh", 9, 1.0)],
        [("jit(step)/while/body/add", 8, 1.0)],
        stack=stack,
    )
    found = own(build_contexts(trace))
    line = CALL + "step:20/Net.__call__:7/"
    assert found[line + "body:2/scan/tanh/op-0"] == 4
    assert found[line + "while/add/op-1"] == 3


def test_the_recorder_has_no_frames() -> None:
    stack = [
        *STACK[:2],
        (1, "JitCallWatch.watched", "lib/stepscope/record/jax/jit_calls.py", 74),
        (2, "helper", "train.py", 9),
    ]
    trace = traced(run(10, 14, "op-0", 1), [("jit(other)/slice", 3, 1.0)], stack=stack)
    (path,) = (path for path in own(build_contexts(trace)) if path.endswith("op-0"))
    assert path.endswith("<module>:30/helper:9/slice/op-0")
