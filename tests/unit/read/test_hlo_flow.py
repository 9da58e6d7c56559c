"""What the instructions of a compiled training step are for, from the values that they take."""

from __future__ import annotations

import random
from typing import Any

import pytest
from xspaces import Operation, Slice, message, read_space

from stepscope.read.shared import WarningLog
from stepscope.read.xplane.hlo_flow import ProgramFlow
from stepscope.read.xplane.hlo_products import Array
from stepscope.read.xplane.hlo_work import HloNode
from stepscope.read.xplane.protobuf import Span
from stepscope.read.xplane.xspace import XSpaceFile
from stepscope.trace.trace import Trace

FORWARD, BACKWARD = "jit(step)/jvp(Net)/dot_general", "jit(step)/transpose(jvp(Net))/dot_general"
SHAPE = "f32[8,8]"


def argument(name: str, number: int) -> Operation:
    return Operation("parameter", name, shape=SHAPE, fields=message((9, number)))


def op(scope: str, *operands: str, opcode: str = "add", shape: str = SHAPE) -> Operation:
    return Operation(opcode, scope, shape=shape, operands=operands)


ARGUMENTS = {"p": argument("params['w']", 0), "x": argument("batch", 1), "n": argument("count", 2)}
STEP = {
    "augmented": op("jit(step)/mul", "x"),
    "cast": op("jit(step)/convert_element_type", "p"),
    "y": op(FORWARD, "augmented", "cast", opcode="dot"),
    "scaled": op("jit(step)/mul", "y"),
    "g": op(BACKWARD, "scaled", opcode="dot"),
    "rate": op("jit(step)/pow", "n"),
    "clipped": op("jit(step)/mul", "g"),
    "q": op("jit(step)/sub", "p", "clipped", "rate"),
    "accuracy": op("jit(step)/mean", "y"),
}
ROLES = {
    "augmented": "data",
    "cast": "constant",
    "y": None,
    "scaled": "pass",
    "g": None,
    "rate": "update",
    "clipped": "update",
    "q": "update",
    "accuracy": "result",
}


def read(operations: dict[str, Operation], names: list[str]) -> Trace:
    """A profile in which some instructions of a program ran once."""
    slices = [
        Slice(name, 10 * row, 10, hlo_op=name, hlo_module="jit_step", program_id=1, run_id=5)
        for row, name in enumerate(names)
    ]
    return read_space({"/host:CPU": {"pool/1": slices}}, {"jit_step": operations})


def roles(operations: dict[str, Operation], names: list[str]) -> dict[str, Any]:
    trace = read(operations, names)
    of_origin = trace["origins"].text("role")
    return {row["name"]: of_origin[row["origin"]] for row in trace.events.rows()}


def returned(*results: str) -> dict[str, Operation]:
    shape = f"({','.join([SHAPE] * len(results))})"
    return {"out": Operation("tuple", shape=shape, operands=results)}


def test_each_instruction_has_a_role() -> None:
    program = ARGUMENTS | STEP | returned("q", "accuracy")
    assert roles(program, list(STEP)) == ROLES


def in_any_order(step: dict[str, Operation], seed: int) -> dict[str, Operation]:
    """The instructions in another order in which operands come before their users."""
    chosen, left = dict[str, Operation](), dict(step)
    generator = random.Random(seed)
    while left:
        ready = [name for name, one in left.items() if not set(one.operands) & set(left)]
        name = generator.choice(ready)
        chosen[name] = left.pop(name)
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_roles_do_not_depend_on_when_xla_runs_an_instruction(seed: int) -> None:
    """XLA runs the update of a moment before the forward pass, if it fits better."""
    program = ARGUMENTS | in_any_order(STEP, seed) | returned("q", "accuracy")
    assert roles(program, list(STEP)) == ROLES


def loop(
    body: dict[str, Operation], results: tuple[str, ...], trips: int | None, scope: str = ""
) -> dict[str, Operation]:
    """A program whose loop carries the arguments, and takes these results to the next iteration."""
    shape = f"({','.join([SHAPE] * 3)})"
    carried = {"carry": Operation("parameter", shape=shape)} | {
        f"{name}0": Operation(
            "get-tuple-element", shape=SHAPE, operands=("carry",), fields=message((13, number))
        )
        for number, name in enumerate(ARGUMENTS)
    }
    inside = {
        name: Operation(
            one.opcode,
            one.scope,
            shape=one.shape,
            members=one.members,
            operands=tuple(f"{n}0" if n in ARGUMENTS else n for n in one.operands),
            fields=one.fields,
        )
        for name, one in body.items()
    }
    config = b'{"known_trip_count":{"n":"%d"}}' % trips if trips is not None else b"{}"
    last = tuple(f"{name}0" if name in ARGUMENTS else name for name in results)
    return (
        ARGUMENTS
        | {
            "start": Operation("tuple", shape=shape, operands=tuple(ARGUMENTS)),
            "while.1": Operation(
                "while",
                scope or "jit(step)/while",
                shape=shape,
                operands=("start",),
                fields=message((43, config)),
                members=carried | inside | {"next": Operation("tuple", shape=shape, operands=last)},
            ),
        }
        | {
            "last": Operation(
                "get-tuple-element", shape=SHAPE, operands=("while.1",), fields=message((13, 0))
            ),
            "out": Operation("tuple", shape=f"({SHAPE})", operands=("last",)),
        }
    )


def loops(program: dict[str, Operation]) -> dict[str, Any]:
    return read(program, list(STEP)).metadata.properties["program_loops"]


@pytest.mark.parametrize("seed", range(5))
def test_within_a_loop_over_batches_roles_are_the_same(seed: int) -> None:
    """What the next iteration does with an update makes it no data."""
    program = loop(in_any_order(STEP, seed), ("q", "x", "n"), 8)
    assert roles(program, list(STEP)) == ROLES
    assert loops(program) == {"jit_step": {"steps": 8, "micro_batches": 1}}


def test_a_loop_that_updates_nothing_it_takes_sums_gradients() -> None:
    summed = {**STEP, "q": op("jit(step)/add", "n", "clipped")}
    program = loop(summed, ("p", "x", "q"), 4)
    found = roles(program, list(STEP))
    assert (found["q"], found["clipped"]) == ("gradient", "gradient")
    assert loops(program) == {"jit_step": {"steps": 1, "micro_batches": 4}}


def test_loops_in_loops_multiply() -> None:
    inner = loop(STEP, ("q", "x", "n"), 8)
    body = {name: one for name, one in inner.items() if name not in ARGUMENTS and name != "out"}
    outer = loop(body, ("last", "x", "n"), 3)
    assert loops(outer) == {"jit_step": {"steps": 24, "micro_batches": 1}}


def test_a_loop_of_unknown_length_is_known_to_train() -> None:
    assert loops(loop(STEP, ("q", "x", "n"), None))["jit_step"]["steps"] == 0


def test_a_loop_over_layers_is_none_over_batches() -> None:
    program = loop(STEP, ("q", "x", "n"), 8, "jit(step)/transpose(jvp(Net))/while")
    assert loops(program) == {}


def test_a_fusion_has_the_role_of_its_largest_operation() -> None:
    members = {
        "a": Operation("parameter", shape=SHAPE),
        "b": Operation("parameter", shape=SHAPE, fields=message((9, 1))),
        "g1": op(BACKWARD, "a"),
        "u1": op("jit(step)/sub", "b", "g1"),
        "u2": op("jit(step)/sub", "u1"),
    }
    program = (
        ARGUMENTS
        | {name: STEP[name] for name in ("augmented", "cast", "y")}
        | {
            "fusion.1": Operation(
                "fusion", "jit(step)/sub", shape=SHAPE, operands=("y", "p"), members=members
            )
        }
        | returned("fusion.1")
    )
    assert roles(program, ["fusion.1"]) == {"fusion.1": "update"}


def test_a_program_without_gradients_has_no_roles() -> None:
    program = ARGUMENTS | {"y": op("jit(step)/dot", "x", "p")}
    assert roles(program, ["y"]) == {"y": None}


def test_fusions_in_fusions_need_no_stack() -> None:
    """A thousand are none of XLA's; Python's own stack would end there."""
    flow, levels = ProgramFlow(XSpaceFile(b"", WarningLog())), 1200
    for number in range(levels):
        opcode, called = ("fusion", (number - 1,)) if number else ("multiply", ())
        flow.add(number, 1, [HloNode(1, opcode, (Array((8,), 32),), (), called, Span(0, 0))], [BACKWARD])
    scopes = {number: [BACKWARD] for number in range(levels)}
    assert set(flow.roles(levels - 1, [], scopes)) == set(range(levels))
