"""Modules of compiled operations by the classes in the stacks in which they were traced."""

from __future__ import annotations

from facts import of_events
from traced_steps import SITE, traced

from stepscope.trace.trace import Trace


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
    trace = traced(*((f"dot.{n}", "jit(step)/jvp()/dot_general", stack) for n, stack in enumerate(lines)))
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Linear_0", "Net.Linear_1"]


def test_scopes_that_tell_more_modules_apart_go_before() -> None:
    """Flax's linen names each instance."""
    stack = [*NET, f"{SITE}/flax/linen/module.py:5 Module.__call__", "model.py:9 Net.__call__"]
    trace = traced(*((f"dot.{n}", f"jit(step)/jvp(Net)/Dense_{n}/dot_general", stack) for n in range(2)))
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Dense_0", "Net.Dense_1"]
    assert set(trace["modules"].text("evidence")) == {"scopes"}


def test_classes_that_show_what_is_inside_what_go_before_as_many_scopes() -> None:
    """Equinox names scopes by the classes of its own layers."""
    net = [*NET, "model.py:9 Net.__call__"]
    layers = [[*net, f"{SITE}/equinox/nn/_{name}.py:99 {name}.__call__"] for name in "AB"]
    trace = traced(
        ("dot.1", "jit(step)/jvp(vmap(eqx.nn.A))/dot_general", layers[0]),
        ("dot.2", "jit(step)/jvp(vmap(eqx.nn.B))/dot_general", layers[1]),
        ("add.1", "jit(step)/jvp(vmap(residual))/add", net),
    )
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.A", "Net.B"]


def test_classes_are_modules_wherever_the_environment_is() -> None:
    """In a folder named like a framework, too."""
    linear = LINEAR.replace("/venv", "/home/me/jax/venv")
    stack = [*NET, "/home/me/jax/model.py:9 Net.__call__", linear]
    trace = traced(("dot.1", "jit(step)/jvp()/dot_general", stack))
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Linear"]


def test_a_stack_that_xla_repeats_in_a_nested_computation_is_one() -> None:
    """As for `dot_product_attention`, which nnx compiles by itself: the frame of `jit` comes first,
    then the whole stack again."""
    block = [*NET, "model.py:9 Net.__call__", "model.py:4 Attention.__call__"]
    again = [*block, f"{SITE}/flax/nnx/transforms/compilation.py:138 JitFn.__call__", *block]
    trace = traced(
        ("dot.1", "jit(step)/jvp()/dot_general", [*block, LINEAR]),
        ("dot.2", "jit(step)/jvp()/dot_general", [*again, f"{SITE}/flax/nnx/nn/a.py:7 attend"]),
    )
    assert [path for path, _, _ in modules(trace)] == ["Net", "Net.Attention", "Net.Attention.Linear"]
    assert of_events(trace, "module")["dot.2"] == 1


PLAIN = ["train.py:20 step", "train.py:18 loss_of"]


def test_without_scopes_and_classes_the_functions_of_the_user_are_modules() -> None:
    model = ["train.py:20 step", "train.py:18 loss_of", "model.py:9 model"]
    loss = ["train.py:20 step", "train.py:19 loss_of", f"{SITE}/optax/losses/_base.py:7 l2_loss"]
    trace = traced(
        ("dot.1", "jit(step)/jvp()/dot_general", [*model, "model.py:3 attention"]),
        ("dot.2", "jit(step)/jvp()/dot_general", [*model[:2], "model.py:10 model"]),
        ("sub.1", "jit(step)/jvp()/sub", loss),
        ("dot.3", "jit(step)/transpose(jvp())/dot_general", [*model, "model.py:3 attention"]),
    )
    assert modules(trace) == [("model", "model", 18), ("model.attention", "attention", 9)]
    found = of_events(trace, "module")
    assert [found[name] for name in ("dot.1", "dot.2", "sub.1", "dot.3")] == [1, 0, None, 1]


def test_functions_are_no_modules_next_to_scopes() -> None:
    trace = traced(
        ("dot.1", "jit(step)/jvp(Net)/dot_general", [*PLAIN, "model.py:9 model"]),
        ("dot.2", "jit(step)/jvp(Net)/dot_general", [*PLAIN, "model.py:3 norm"]),
    )
    assert [path for path, _, _ in modules(trace)] == ["Net"]


def test_a_function_around_every_operation_is_no_module() -> None:
    trace = traced(("dot.1", "jit(step)/jvp()/dot_general", [*NET, "model.py:3 mlp"]))
    assert modules(trace) == []
