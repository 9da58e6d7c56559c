"""The operations that a compiled instruction was made from: their frames, and their shares."""

from __future__ import annotations

from typing import Any

import pytest
from xspaces import Operation, Slice, read_space

from stepscope.trace.trace import Trace

STACK = ("train.py:9 train", "train.py:4 step", "model.py:7 Net.__call__")
HERE = ("train.py:9 train", "train.py:4 step")


def ran(name: str, programs: dict[str, dict[str, Operation]]) -> Trace:
    """A profile in which one instruction ran on a thread."""
    ids = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 1, "run_id": 5}
    return read_space({"/host:CPU": {"pool/1": [Slice(name, 10, 30, **ids)]}}, programs)


def origins(trace: Trace) -> list[tuple[Any, ...]]:
    """Scope, frames and share of each origin of the only event."""
    (first,) = trace.events["origin"].tolist()
    frames = list(trace["frames"].rows())

    def stack(number: int | None) -> list[str]:
        if number is None:
            return []
        frame = frames[number]
        return [*stack(frame["parent"]), f"{frame['file']}:{frame['line']} {frame['function']}"]

    return [
        (row["scope"], stack(row["frame"]), pytest.approx(row["share"]))
        for row in trace["origins"].rows()
        if row["first"] == first
    ]


def test_an_instruction_has_the_stack_in_which_it_was_traced() -> None:
    sine = Operation("sine", "jit(step)/sin", shape="f32[8]", stack=STACK)
    found = origins(ran("sine.1", {"jit_step": {"sine.1": sine}}))
    assert found == [("jit(step)/sin", [*STACK], 1)]


def test_without_a_stack_it_has_its_line() -> None:
    sine = Operation("sine", "jit(step)/sin", "model.py", 7, shape="f32[8]")
    assert origins(ran("sine.1", {"jit_step": {"sine.1": sine}})) == [("jit(step)/sin", ["model.py:7 "], 1)]


@pytest.mark.parametrize("beyond", [2**31, 2**32, 2**63])
def test_of_a_line_beyond_32_bits_the_low_ones_are_kept_as_the_format_says(beyond: int) -> None:
    alone = Operation("sine", "jit(step)/sin", "model.py", beyond + 7, shape="f32[8]")
    stacked = Operation("sine", "jit(step)/sin", shape="f32[8]", stack=(f"model.py:{beyond + 7} f",))
    line = (beyond + 7 + 2**31) % 2**32 - 2**31
    for operation, function in ((alone, ""), (stacked, "f")):
        found = origins(ran("sine.1", {"jit_step": {"sine.1": operation}}))
        assert found == [("jit(step)/sin", [f"model.py:{line} {function}"], 1)]


def test_a_fusion_is_made_from_its_members_by_operations_and_bytes() -> None:
    """64 additions move 3 x 256 bytes; 64 elements are negated with 2 x 256 bytes, twice."""
    members = {
        "p": Operation("parameter", shape="f32[64]"),
        "sum": Operation("add", "jit(step)/add", shape="f32[64]", operands=("p", "p"), stack=STACK),
        "n": Operation("negate", "jit(step)/neg", shape="f32[64]", operands=("sum",), stack=HERE),
        "m": Operation("negate", "jit(step)/neg", shape="f32[64]", operands=("n",), stack=HERE),
    }
    fused = {
        "x": Operation("parameter", shape="f32[64]"),
        "fusion.1": Operation("fusion", "jit(step)/neg", shape="f32[64]", operands=("x",), members=members),
    }
    add, negate = 64 + 3 * 256, 2 * (64 + 2 * 256)
    assert origins(ran("fusion.1", {"jit_step": fused})) == [
        ("jit(step)/add", [*STACK], add / (add + negate)),
        ("jit(step)/neg", [*HERE], negate / (add + negate)),
    ]


def test_the_scope_of_a_fusion_is_that_of_its_largest_member() -> None:
    """XLA names it after its last."""
    members = {
        "p": Operation("parameter", shape="f32[8,8]"),
        "dot": Operation("dot", "jit(step)/jvp()/dot", shape="f32[8,8]", operands=("p", "p")),
        "n": Operation("negate", "jit(step)/neg", shape="f32[8,8]", operands=("dot",)),
    }
    fused = Operation("fusion", "jit(step)/neg", shape="f32[8,8]", members=members)
    trace = ran("fusion.1", {"jit_step": {"fusion.1": fused}})
    assert list(trace.events.text("scope")) == ["jit(step)/jvp()/dot"]


def test_an_instruction_of_no_known_operation_has_no_origin() -> None:
    copy = Operation("copy", shape="f32[8]")
    trace = ran("copy.1", {"jit_step": {"copy.1": copy}})
    assert trace.events["origin"].tolist() == [-1]
    assert len(trace["origins"]) == len(trace["frames"]) == 0


def test_a_stack_without_end_is_cut() -> None:
    """A damaged file whose frames call each other."""
    stack = tuple(f"train.py:{line} f" for line in range(1, 600))
    sine = Operation("sine", "jit(step)/sin", shape="f32[8]", stack=stack)
    ((_, frames, _),) = origins(ran("sine.1", {"jit_step": {"sine.1": sine}}))
    assert frames == list(stack[-256:])


def test_the_arguments_of_the_largest_program_have_names_and_sizes() -> None:
    programs = {
        "jit_step": {
            "p": Operation("parameter", "params['w']", shape="f32[8,4]"),
            "sine.1": Operation("sine", "jit(step)/sin", shape="f32[8,4]", operands=("p",)),
        }
    }
    trace = ran("sine.1", programs)
    assert [list(one) for one in trace.metadata.properties["arguments"]] == [
        ["params['w']", 32, 128, "", -1, False]
    ]
