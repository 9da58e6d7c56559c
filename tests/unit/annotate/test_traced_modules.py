"""Modules of compiled operations by the classes in the stacks in which they were traced."""

from __future__ import annotations

from typing import Any

import numpy as np
from facts import of_events

from stepscope.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, ORIGINS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

SITE = "/venv/lib/python3.11/site-packages"


def traced(*operations: tuple[str, str, list[str]]) -> Trace:
    """One step of operations, each with its name, scope and stack of `FILE:LINE FUNCTION`."""
    numbers: dict[tuple[int, str], int] = {}
    rows, text = [], ["main | 0 500 | PjitFunction(step) | cat=runtime"]
    for index, (name, scope, stack) in enumerate(operations):
        number = -1
        for frame in stack:
            number = numbers.setdefault((number, frame), len(numbers))
        rows.append((index, scope, number, 1.0))
        begin = 10 * (index + 1)
        of = f"cat=cpu_op corr=1 scope={scope}"
        text.append(f"pool | {begin} {begin + 10} | {name} | {of}")
    trace = drawn_trace("\n".join(text))
    names = [name for name, _, _ in operations]
    origin = [
        names.index(name) if name in names else -1
        for name in (text or "" for text in trace.events.text("name"))
    ]
    first, scopes, frame, share = zip(*rows, strict=True)
    places = [frame.partition(" ") for _, frame in numbers]
    origins: dict[str, Any] = {
        "first": first, "scope": Text.of(scopes), "frame": frame, "share": share,
    }  # fmt: skip
    frames: dict[str, Any] = {
        "parent": [parent for parent, _ in numbers],
        "function": Text.of(function for _, _, function in places),
        "file": Text.of(place.rpartition(":")[0] for place, _, _ in places),
        "line": [int(place.rpartition(":")[2]) for place, _, _ in places],
    }
    trace = trace.with_events(origin=np.array(origin))
    trace = trace.with_table(Table(ORIGINS, origins)).with_table(Table(FRAMES, frames))
    return annotate(trace)


def modules(trace: Trace) -> list[tuple[str, str, int]]:
    return [(row["path"], row["class"], row["call_line"]) for row in trace["modules"].rows()]


STEP = ["train.py:20 step", f"{SITE}/flax/nnx/transforms/autodiff.py:122 GradFn.__call__"]
NET = [*STEP, "train.py:18 loss_of"]
LINEAR = f"{SITE}/flax/nnx/nn/linear.py:422 Linear.__call__"


def test_a_module_is_a_class_called_from_a_line() -> None:
    block = [*NET, "model.py:9 Net.__call__", "model.py:4 Block.__call__"]
    trace = traced(
        ("dot.1", "jit(step)/jvp()/dot_general", [*block, LINEAR]),
        ("add.1", "jit(step)/jvp()/add", block),
        ("dot.2", "jit(step)/jvp()/dot_general", [*NET, "model.py:11 Net.__call__", LINEAR]),
        ("dot.3", "jit(step)/transpose(jvp())/dot_general", [*block, LINEAR]),
    )
    assert modules(trace) == [
        ("Net", "Net", 18),
        ("Net.Block", "Block", 9),
        ("Net.Block.Linear", "Linear", 4),
        ("Net.Linear", "Linear", 11),
    ]
    found = of_events(trace, "module")
    assert [found[name] for name in ("dot.1", "add.1", "dot.2", "dot.3")] == [2, 1, 3, 2]
    assert set(trace["modules"].text("evidence")) == {"stacks"}
    assert trace["modules"]["backward_cpu_ns"].tolist() == [10_000, 10_000, 10_000, 0]


def test_calls_of_a_class_from_two_lines_are_two_modules() -> None:
    lines = [[*NET, f"model.py:{line} Net.__call__", LINEAR] for line in (9, 10)]
    trace = traced(*(
        (f"dot.{n}", "jit(step)/jvp()/dot_general", stack) for n, stack in enumerate(lines)
    ))  # fmt: skip
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Linear_0", "Net.Linear_1"]


def test_scopes_that_tell_more_modules_apart_go_before() -> None:
    """Flax's linen names each instance."""
    stack = [*NET, f"{SITE}/flax/linen/module.py:5 Module.__call__", "model.py:9 Net.__call__"]
    trace = traced(*(
        (f"dot.{n}", f"jit(step)/jvp(Net)/Dense_{n}/dot_general", stack) for n in range(2)
    ))  # fmt: skip
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Dense_0", "Net.Dense_1"]
    assert set(trace["modules"].text("evidence")) == {"scopes"}


def test_functions_alone_are_no_modules() -> None:
    trace = traced(("dot.1", "jit(step)/jvp()/dot_general", [*NET, "model.py:3 mlp"]))
    assert modules(trace) == []
