"""The line of a compiled operation is the user's, also where a library traced it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stepscope.analyze.source_places import CompiledLine, CompiledSources
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, ORIGINS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

LAYER = "/venv/lib/python3.11/site-packages/flax/linen/linear.py"


def traced(files: list[str], source: str) -> Trace:
    """One operation, traced in the innermost of these files, each at line 10 times its place."""
    trace = drawn_trace(
        f"pool | 0 9 | dot.1 | cat=cpu_op scope=jit(step)/dot_general source={source}", framework="jax"
    )
    count = len(files)
    frames = {
        "parent": list(range(-1, count - 1)),
        "function": Text.of(["f"] * count),
        "file": Text.of(files),
        "line": [10 * (place + 1) for place in range(count)],
    }
    origin = {"first": [0], "scope": Text.of(["dot"]), "frame": [count - 1], "share": [1.0]}
    trace = trace.with_events(origin=np.array([0 if count else -1]))
    return trace.with_table(Table(FRAMES, frames)).with_table(Table(ORIGINS, origin))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.py", "model.py", LAYER], CompiledLine("model.py", 20)),
        (["train.py", "model.py"], CompiledLine("model.py", 20)),
        ([LAYER], CompiledLine(LAYER, 7)),
    ],
)
def test_the_innermost_line_of_the_user(files: list[str], expected: CompiledLine) -> None:
    source = "model.py:20" if files[-1] == "model.py" else f"{LAYER}:7"
    assert CompiledSources(traced(files, source)).line(0) == expected


def program(frames: list[tuple[int, str, str, int]], of: str = "PjitFunction(step)") -> CompiledLine:
    """The line of the call of `step`, of one operation in the last of these frames."""
    module = "jit_" + re.sub(r"\W", "_", of[len("PjitFunction(") : -1])
    trace = drawn_trace(
        f"main | 0 5 | {of} | cat=runtime\n"
        f"pool | 6 9 | dot.1 | cat=cpu_op hlo__module={module} source={LAYER}:7",
        framework="jax",
    )
    parent, function, file, line = zip(*frames, strict=True)
    table = {"parent": parent, "function": Text.of(function), "file": Text.of(file), "line": line}
    origin = {"first": [0], "scope": Text.of(["dot"]), "frame": [len(frames) - 1], "share": [1.0]}
    trace = trace.with_events(origin=np.array([-1, 0]))
    trace = trace.with_table(Table(FRAMES, table)).with_table(Table(ORIGINS, origin))
    return CompiledSources(trace).line(0)


def test_a_program_has_the_first_line_of_its_function() -> None:
    """Not that of a model in the same file, defined above it, or of a library."""
    assert program(
        [
            (-1, "step", "train.py", 35),
            (0, "Net.__call__", "train.py", 8),
            (1, "call", LAYER, 7),
            (-1, "step", "train.py", 33),
        ]
    ) == CompiledLine("train.py", 33)


def test_a_program_of_a_lambda_has_its_line() -> None:
    """XLA writes `jit__lambda` and `jit__lambda_`."""
    frames = [(-1, "<lambda>", "train.py", 12)]
    assert program(frames, of="PjitFunction(<lambda>)") == CompiledLine("train.py", 12)


def test_a_program_without_its_function_has_a_line_of_the_users() -> None:
    """The name of what a transformation makes is JAX's own."""
    frames = [(-1, "update", "train.py", 35), (0, "call", LAYER, 7)]
    assert program(frames) == CompiledLine("train.py", 35)
