"""Findings in full on programs of XLA: copies, small ones, callbacks, donations and compilation."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import NODE, Case, Limit, alone, from_limit_on, in_full, repeated

from stepscope.analyze.rules.copy_fusions import only_moves
from stepscope.analyze.rules.missing_donation import _functions_around
from stepscope.trace.schema import FRAMES
from stepscope.trace.table import Table, Text

JAX: dict[str, Any] = {"framework": "jax"}

OF_JAX = "train#step_num={} | cat=annotation"


def program(name: str, start: float, end: float, operation: str = "fusion", more: str = "") -> str:
    """A call of a compiled function, in whose second half its operation runs."""
    middle = (start + end) / 2
    return (
        f"main | {start} {end} | PjitFunction({name}) | cat=runtime\n"
        f"main | {middle} {end} | {operation} | hlo__module=jit_{name} source=net.py:7 {more}\n"
    )


def of_jax(*parts: str, us: float = 20_000) -> str:
    return repeated("".join(parts), us, mark=OF_JAX)


def moving(*operations: tuple[str, float, str]) -> str:
    """Operations one after the other: name, us and options."""
    parts, at = [], 0.0
    for name, us, options in operations:
        parts.append(program("f", at, at + 2 * us, name, options))
        at += 2 * us
    return of_jax(*parts)


def counted(flops: float, size: float) -> str:
    return f"flops__from__shapes={flops} bytes__from__shapes={size}"


COUNTED = [
    ("copy.1", 3000, counted(0, 9)),
    ("copy.2", 800, counted(1, 9)),
    ("wrapped_convert", 500, counted(32, 96)),
]

COMPUTING = [("copy_convert_fusion", 900, counted(33, 96)), ("transpose_add_fusion", 400, "")]


def scoped(name: str, us: float, primitive: str) -> tuple[str, float, str]:
    return name, us, f"scope=jit(f)/jvp()/{primitive}"


def small_programs(
    count: int, us: float = 50, every: float = 200, name: str = "multiply", more: str = ""
) -> str:
    calls = [program(name, 1000 + every * n, 1000 + every * n + us) for n in range(count)]
    return of_jax(*calls, more)


def donating(could: int, whole: int) -> dict[str, Any]:
    return JAX | {
        "properties": {"programs": {"jit_f": {"argument_bytes": whole, "could_donate_bytes": could}}}
    }


CALLS = f"""
    main | 10 90 | stepscope.module: net
    main | 20 80 | aten::mm | seq=7
    main | 110 190 | stepscope.module: net
    main | 120 {{end}} | aten::mm | seq=8
    main | 210 290 | stepscope.module: frozen
    main | 220 280 | aten::mm | seq=9
    main | 310 390 | stepscope.module: net
    main | 320 380 | aten::mm
    main | 400 480 | stepscope.module: net
    main | 410 470 | aten::relu | seq=10
    main | 500 600 | {NODE} MmBackward0 | seq=7 fwd=1
    main | 510 590 | aten::mm
    main | 700 800 | Optimizer.step#SGD.step
"""


def calls(end: float = 180, us: float = 1000) -> str:
    return repeated(CALLS.format(end=end), us)


COMPILED = """
    main | 10 800 | _compile.compile_inner (dynamo_timed) | cat=annotation
    main | 20 700 | _compile.compile_inner (dynamo_timed) | cat=annotation
    main | 810 900 | aten::mm
"""

CASES = {
    "copies that move": Case(
        "copy_fusions",
        moving(*COUNTED, *COMPUTING),
        """
        Each step transposes, copies or converts arrays 2 times, 3.5 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> The profile does not show what asks for most of them; XLA may have inserted them.
        warning: 3.5 of 20 ms, 0 to 3.5
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=wrapped_convert,factor=0
        * copy.1 × 1, 3 ms, other net.py:7 in f
        * wrapped_convert × 1, 0.5 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies that are asked for": Case(
        "copy_fusions",
        moving(
            scoped("copy.1", 2000, "dot_general"),
            scoped("copy.2", 1000, "transpose"),
            scoped("copy.3", 1000, "reshape"),
        ),
        """
        Each step transposes, copies or converts arrays 3 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> Keep one order of dimensions and one type throughout.
        critical: 4 of 20 ms, 0 to 4
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0 +
        scale:select=operator=copy.3,factor=0
        * copy.1 × 1, 2 ms, forward net.py:7 in f
        * copy.2 × 1, 1 ms, forward net.py:7 in f
        * copy.3 × 1, 1 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies that are inserted": Case(
        "copy_fusions",
        moving(
            scoped("copy.1", 2002, "dot_general"),
            scoped("copy.2", 1000, "transpose"),
            scoped("copy.3", 1000, "reshape"),
        ),
        """
        Each step transposes, copies or converts arrays 3 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> No line asks for most of them: XLA inserted them for the order of dimensions of
        dot_general.
        critical: 4.002 of 20 ms, 0 to 4.002
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0 +
        scale:select=operator=copy.3,factor=0
        * copy.1 × 1, 2.002 ms, forward net.py:7 in f
        * copy.2 × 1, 1 ms, forward net.py:7 in f
        * copy.3 × 1, 1 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies half of which are unknown": Case(
        "copy_fusions",
        moving(("copy.1", 2000, ""), scoped("copy.2", 2000, "transpose")),
        """
        Each step transposes, copies or converts arrays 2 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> Keep one order of dimensions and one type throughout.
        critical: 4 of 20 ms, 0 to 4
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0
        * copy.1 × 1, 2 ms, other net.py:7 in f
        * copy.2 × 1, 2 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "small programs": Case(
        "small_programs",
        small_programs(20, more=program("f", 10, 900) + "main | 1060 1160 | wait: float(x) | cat=runtime\n"),
        """
        Each step starts 20 small programs one by one, 1 ms.
        Mostly multiply.
        -> Move these operations into the jitted step, or into one function under jax.jit.
        warning: 3.75 of 20 ms, 0 to 4.4
        at most the time of these calls, with the Python between; a step that is all under one
        jax.jit saves the time between its other calls too
        * PjitFunction(multiply) × 20, 1 ms, other net.py:7 in multiply
        """,
        metadata=JAX,
    ),
    "callbacks": Case(
        "host_callbacks",
        of_jax(program("f", 0, 4000, "pure_callback.1"), program("f", 5000, 5100, "debug_callback_of_mine")),
        """
        The compiled step calls back into Python once, 2 ms.
        The device's data are copied to the host for it.
        -> Return the value from the step and read it every N steps.
        warning: 2 of 20 ms, 0 to 2
        at most the time of the callbacks
        scale:select=operator=pure_callback.1,factor=0
        * pure_callback.1 × 1, 2 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
    "a donation": Case(
        "missing_donation",
        of_jax(program("f", 0, 4000)),
        """
        f returns 40 MB of its arguments' shapes in new memory.
        The old values stay allocated meanwhile.
        -> Pass donate_argnums or donate_argnames to jax.jit if the program does not use the old
        values again.
        info: 0 of 20 ms, 0 to 0
        up to 40 MB of memory, no time
        * PjitFunction(f) × 1, 4 ms, other net.py:7 in f
        """,
        metadata=donating(40_000_000, 44_000_000),
    ),
    "a compilation": Case(
        "recompilation",
        repeated(COMPILED),
        """
        torch.compile compiles once per step, 0.79 ms.
        -> If these steps are the first, record later ones: each function has to be compiled once.
        warning: 0.79 of 1 ms, 0 to 0.79
        at most the compile time
        scale:select=operator=_compile.compile_inner (dynamo_timed),factor=0
        * _compile.compile_inner (dynamo_timed) × 1, 0.79 ms, forward
        """,
    ),
    "a compilation in JAX": Case(
        "recompilation",
        of_jax(program("f", 0, 4000), "main | 10 900 | backend_compile_and_load | cat=annotation\n"),
        """
        jax.jit compiles once per step, 0.89 ms.
        Mostly f.
        See net.py:7 in f.
        -> If these steps are the first, record later ones: each function has to be compiled once.
        info: 0.89 of 20 ms, 0 to 4
        the compile time; until caches are warm again, all that follows takes longer, too
        scale:select=operator=backend_compile_and_load,factor=0
        * backend_compile_and_load × 1, 0.89 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
}

LIMITS = {
    "moving for 10 % of the step": Limit(
        "copy_fusions", moving(("copy.1", 2000, "")), moving(("copy.1", 1999.9, "")), JAX
    ),
    "20 programs": Limit("small_programs", small_programs(20), small_programs(19), JAX),
    "programs of less than 200 us": Limit(
        "small_programs", small_programs(40, 199.9, 250), small_programs(40, 200, 250), JAX
    ),
    "programs that repeat": Limit(
        "small_programs",
        small_programs(20, more=program("once", 9000, 9010) * 2),
        of_jax(*(program(f"f{n}", 1000 + 200 * n, 1050 + 200 * n) for n in range(30))),
        JAX,
    ),
    "donations of a tenth": Limit(
        "missing_donation",
        of_jax(program("f", 0, 4000)),
        of_jax(program("g", 0, 4000)),
        donating(4_400_000, 44_000_000),
    ),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)


ASKED = (
    *("transpose", "copy", "copy_p", "convert_element_type", "reshape", "rev", "concatenate", "slice"),
    *("dynamic_slice", "squeeze", "broadcast_in_dim", "optimization_barrier"),
)


@pytest.mark.parametrize("primitive", [*ASKED, "mul"])
def test_what_asks_for_another_order_of_dimensions(primitive: str) -> None:
    """Two operations of the primitive take longer together than one of a product."""
    operations = [scoped("copy.1", 1000, primitive), scoped("copy.2", 1000, primitive)]
    (finding,) = alone("copy_fusions", moving(*operations, scoped("copy.3", 1500, "dot_general")), **JAX)
    words = "Keep one order" if primitive in ASKED else "No line asks for most of them"
    assert finding.advice.startswith(words)
    assert primitive in ASKED or "order of dimensions of mul." in finding.advice


MOVES = (
    *("loop", "input", "wrapped", "fused", "fusion", "kernel", "computation", "bitcast", "reshape"),
    *("element", "type", "transpose", "copy", "convert"),
)


@pytest.mark.parametrize("word", MOVES)
def test_names_of_operations_that_only_move(word: str) -> None:
    assert only_moves(f"{word}_copy_fusion.3.kd")
    assert only_moves(word) == (word in ("transpose", "copy", "convert"))
    assert not only_moves(f"{word}_copy_add")


def test_moving_in_most_of_the_steps_is_not_moving_in_all() -> None:
    """In two of three steps for 12 %, so on average for 8 %."""
    steps = of_jax(program("f", 0, 4800, "copy.1")).splitlines()
    third = ["main | 40000 60000 | train#step_num=2 | cat=annotation"]
    third += ["main | 40000 41000 | PjitFunction(f) | cat=runtime"]
    assert not alone("copy_fusions", "\n".join([*steps, *third]), **JAX)
    assert len(alone("copy_fusions", "\n".join(steps), **JAX)) == 1


@pytest.mark.parametrize(("could", "found"), [((1 << 20) - 1, 0), (1 << 20, 1), ((1 << 20) + 1, 1)])
def test_a_donation_of_1_mib(could: int, found: int) -> None:
    assert len(alone("missing_donation", of_jax(program("f", 0, 4000)), **donating(could, 2 << 20))) == found


@pytest.mark.parametrize(("could", "found"), [(4_399_999, 0), (4_400_000, 1)])
def test_a_donation_of_a_tenth_of_the_arguments(could: int, found: int) -> None:
    assert (
        len(alone("missing_donation", of_jax(program("f", 0, 4000)), **donating(could, 44_000_000))) == found
    )


def test_each_program_is_judged_by_itself() -> None:
    sizes = {"argument_bytes": 44_000_000, "could_donate_bytes": 40_000_000}
    known = {
        "programs": {"jit_small": sizes | {"could_donate_bytes": 9}, "jit_f": sizes, "jit_unused": sizes}
    }
    text = of_jax(program("unknown", 0, 900), program("small", 1000, 1900), program("f", 2000, 4000))
    (finding,) = alone("missing_donation", text, **JAX, properties=known)
    assert finding.what.startswith("f returns 40 MB")


def test_the_functions_around_some_frames() -> None:
    frames = {
        "parent": [-1, 0, 1, -1],
        "function": Text.of(["main", "Trainer.step", "clip", "other"]),
        "file": Text.of(["a.py"] * 4),
        "line": [1] * 4,
    }
    assert _functions_around(Table(FRAMES, frames), [1]) == {"main", "step"}
    assert _functions_around(Table(FRAMES, frames), [2, 3]) == {"main", "step", "clip", "other"}
    assert _functions_around(Table(FRAMES, frames), []) == set()
