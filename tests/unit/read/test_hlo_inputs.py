"""What compiled updates take: arguments of their program, and gradients."""

from __future__ import annotations

from typing import Any

from xspaces import Operation, Slice, message, read_space

from stepscope.trace.trace import Trace

FORWARD, BACKWARD = "jit(step)/jvp(Net)/Dense_0/dot_general", "jit(step)/transpose(jvp(Net))/"
STEP = {
    "w": Operation("parameter", "params['Dense_0']['w']", shape="f32[8,4]"),
    "rate": Operation("parameter", "rate", shape="f32[]"),
    "x": Operation("parameter", "x", shape="f32[8,8]"),
    "half": Operation("convert", "jit(step)/convert", shape="bf16[8,4]", operands=("w",)),
    "y": Operation("dot", FORWARD, shape="f32[8,4]", operands=("x", "half")),
    "g": Operation("dot", f"{BACKWARD}Dense_0/dot", shape="f32[8,4]", operands=("x", "y")),
    "update": Operation("subtract", "jit(step)/sub", shape="f32[8,4]", operands=("w", "g", "rate")),
    "square": Operation("reduce", "jit(step)/sum", shape="f32[]", operands=("g",)),
    "scaled": Operation("multiply", "jit(step)/mul", shape="f32[8,4]", operands=("g", "square")),
    "out": Operation("tuple", shape="(f32[8,4],f32[8,4])", operands=("update", "scaled")),
}


def ran(operations: dict[str, Operation]) -> Trace:
    """A profile in which each instruction ran once."""
    slices = [
        Slice(name, 10 * row, 10, hlo_op=name, hlo_module="jit_step", program_id=1, run_id=5)
        for row, name in enumerate(operations)
    ]
    return read_space({"/host:CPU": {"pool/1": slices}}, {"jit_step": operations})


def inputs(operations: dict[str, Operation], name: str) -> list[tuple[Any, Any]]:
    """Argument and scope of each input of an instruction."""
    trace = ran(operations)
    first = {row["name"]: row["origin"] for row in trace.events.rows()}[name]
    rows = [row for row in trace["inputs"].rows() if row["first"] == first]
    return [(row["argument"], row["scope"]) for row in rows]


GRADIENT = (None, f"{BACKWARD}Dense_0/dot")


def test_an_update_takes_its_parameter_and_its_gradient() -> None:
    assert inputs(STEP, "update") == [("params['Dense_0']['w']", None), GRADIENT]


def test_a_value_smaller_than_the_result_does_not_count() -> None:
    """A gradient scaled by a norm is no update of what the norm was computed from."""
    assert inputs(STEP, "square") == inputs(STEP, "scaled") == [GRADIENT]


def test_operations_of_the_two_passes_take_nothing() -> None:
    assert inputs(STEP, "y") == inputs(STEP, "g") == []


def arguments(operations: dict[str, Operation]) -> list[tuple[Any, ...]]:
    return [tuple(one) for one in ran(operations).metadata.properties["arguments"]]


def test_an_argument_knows_its_first_use_and_whether_a_gradient_updates_it() -> None:
    """Also where it is converted before."""
    assert arguments(STEP) == [
        ("params['Dense_0']['w']", 32, 128, FORWARD, -1, True),
        ("rate", 1, 4, "", -1, False),
        ("x", 64, 256, FORWARD, -1, False),
    ]


def element_of(number: int, of: str, shape: str) -> Operation:
    fields = message((13, number))
    return Operation("get-tuple-element", shape=shape, operands=(of,), fields=fields)


def test_gradients_that_are_reduced_together_stay_apart() -> None:
    """XLA merges the all-reduces of all gradients into one, which has the scopes of all."""
    both = ("first", "second")
    operations = {name: Operation("dot", f"{BACKWARD}{name}/dot", shape="f32[4]") for name in both} | {
        "all": Operation("all-reduce", f"{BACKWARD}sum", shape="(f32[4],f32[4])", operands=both),
        "own": Operation("all-reduce", "jit(step)/psum", shape="(f32[4],f32[4])", operands=both),
        "mine": element_of(1, "all", "f32[4]"),
        "update": Operation("negate", "jit(step)/neg", shape="f32[4]", operands=("mine",)),
    }
    assert inputs(operations, "update") == [(None, f"{BACKWARD}second/dot")]
    assert inputs(operations, "own") == [(None, f"{BACKWARD}{name}/dot") for name in both]


def test_an_update_fused_with_its_gradient_takes_that() -> None:
    members = {
        "p": Operation("parameter", shape="f32[8,4]"),
        "g": Operation("multiply", f"{BACKWARD}Dense_0/mul", shape="f32[8,4]", operands=("p", "p")),
        "u": Operation("negate", "jit(step)/neg", shape="f32[8,4]", operands=("g",)),
    }
    fused = Operation("fusion", "jit(step)/neg", shape="f32[8,4]", operands=("w",), members=members)
    found = inputs({"w": STEP["w"], "fusion.1": fused}, "fusion.1")
    assert found == [(None, f"{BACKWARD}Dense_0/mul"), ("params['Dense_0']['w']", None)]


def test_a_batch_that_is_fused_with_an_update_is_not_updated() -> None:
    """XLA fuses the gradient of a convolution, which takes the batch, with the optimizer."""
    members = {
        "p": Operation("parameter", shape="f32[8,8]"),
        "q": Operation("parameter", shape="f32[8,4]", fields=message((9, 1))),
        "g": Operation("dot", f"{BACKWARD}Dense_0/dot", shape="f32[8,4]", operands=("p", "q")),
        "u": Operation("subtract", "jit(step)/sub", shape="f32[8,4]", operands=("q", "g")),
    }
    fused = Operation("fusion", "jit(step)/sub", shape="f32[8,4]", operands=("x", "w"), members=members)
    assert arguments({name: STEP[name] for name in ("w", "x")} | {"fusion.1": fused}) == [
        ("params['Dense_0']['w']", 32, 128, "", -1, True),
        ("x", 64, 256, "", -1, False),
    ]


def test_in_a_fusion_the_member_that_takes_an_argument_uses_it() -> None:
    members = {
        "p": Operation("parameter", shape="f32[8,4]"),
        "q": Operation("parameter", shape="f32[8,4]", fields=message((9, 1))),
        "drop": Operation("negate", "jit(step)/jvp(Net)/drop/neg", shape="f32[8,4]", operands=("p",)),
        "add": Operation("add", FORWARD, shape="f32[8,4]", operands=("drop", "q")),
    }
    fused = Operation("fusion", FORWARD, shape="f32[8,4]", operands=("y", "w"), members=members)
    operations = {name: STEP[name] for name in ("x", "w")} | {
        "y": Operation("negate", "jit(step)/neg", shape="f32[8,4]", operands=("x",)),
        "fusion.1": fused,
    }
    assert [one[3] for one in arguments(operations)] == ["jit(step)/jvp(Net)/drop/neg", FORWARD]


def test_a_loop_over_stacked_layers_uses_them_where_its_body_does() -> None:
    """`lax.scan` takes a slice of the argument in each iteration, at the line of the scan."""
    loop = "jit(step)/jvp(Net)/while/body/"
    body = {
        "carry": Operation("parameter", shape="(s32[],f32[6,8,4])"),
        "i": element_of(0, "carry", "s32[]"),
        "all": element_of(1, "carry", "f32[6,8,4]"),
        "one": Operation("dynamic-slice", f"{loop}dynamic_slice", shape="f32[1,8,4]", operands=("all", "i")),
        "y": Operation("dot", f"{loop}layer/dot", shape="f32[8,8]", operands=("one", "one")),
    }
    operations = {
        "n": Operation("constant", shape="s32[]"),
        "w": Operation("parameter", "params['layers']['w']", shape="f32[6,8,4]"),
        "start": Operation("tuple", shape="(s32[],f32[6,8,4])", operands=("n", "w")),
        "while.1": Operation(
            "while", "jit(step)/jvp(Net)/while", shape="(s32[],f32[6,8,4])", operands=("start",), members=body
        ),
    }
    assert arguments(operations) == [("params['layers']['w']", 192, 768, f"{loop}layer/dot", -1, False)]


def test_a_loop_updates_the_arguments_that_an_iteration_updates() -> None:
    """Several steps inside one call."""
    body = {
        "carry": Operation("parameter", shape="(s32[],f32[4])"),
        "w": element_of(1, "carry", "f32[4]"),
        "g": Operation("dot", f"{BACKWARD}dot", shape="f32[4]", operands=("w", "w")),
        "u": Operation("subtract", "jit(step)/sub", shape="f32[4]", operands=("w", "g")),
        "i": element_of(0, "carry", "s32[]"),
        "next": Operation("tuple", shape="(s32[],f32[4])", operands=("i", "u")),
    }
    operations = {
        "n": Operation("constant", shape="s32[]"),
        "weights": Operation("parameter", "carry['w']", shape="f32[4]"),
        "start": Operation("tuple", shape="(s32[],f32[4])", operands=("n", "weights")),
        "while.1": Operation("while", shape="(s32[],f32[4])", operands=("start",), members=body),
    }
    ((_, _, _, _, _, updated),) = arguments(operations)
    assert updated
