"""Stages of compiled operations by their stacks, and of programs that are all of one stage."""

from __future__ import annotations

import numpy as np
import pytest
from facts import of_events
from traced_steps import SITE, traced

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.facts.annotate.jax.stages import with_evaluation
from stepscope.testing import drawn_trace
from stepscope.trace.schema import KERNEL_KINDS, STAGES
from stepscope.trace.table import Text

STEP = ["train.py:20 step"]
OPTAX = f"{SITE}/optax/_src/transform.py:9 scale_by_adam.<locals>.update_fn"


def stages(*operations: tuple[str, str, list[str]]) -> dict[str, str]:
    found = of_events(traced(*operations), "stage")
    return {name: found[name] for name, _, _ in operations}


def test_what_optax_traces_is_optimizer_even_before_the_forward_pass() -> None:
    """XLA runs the update of a moment as early as its inputs are there."""
    assert stages(
        ("decay", "jit(step)/mul", [*STEP, OPTAX]),
        ("cast", "jit(step)/convert_element_type", STEP),
        ("dot.1", "jit(step)/jvp()/dot_general", [*STEP, "train.py:3 loss"]),
        ("dot.2", "jit(step)/transpose(jvp())/dot_general", [*STEP, "train.py:3 loss"]),
        ("update", "jit(step)/sub", STEP),
    ) == {
        "decay": "optimizer",
        "cast": "other",
        "dot.1": "forward",
        "dot.2": "backward",
        "update": "optimizer",
    }


def test_without_transformations_programs_that_are_named_so_are_passes() -> None:
    """Before JAX 0.8 the operations of a pullback that is compiled by itself carry none."""
    operations = [
        ("dot.1", "jit(forward)/jit(main)/dot_general", ["train.py:3 forward"]),
        ("dot.2", "jit(backward)/jit(main)/dot_general", ["train.py:9 backward"]),
        ("mul", "jit(apply)/jit(main)/mul", ["train.py:12 apply"]),
    ]
    found = stages(*operations)
    assert (found["dot.1"], found["dot.2"]) == ("forward", "backward")
    known = ("dot.3", "jit(grads)/transpose(jvp())/dot_general", ["train.py:20 grads"])
    assert stages(*operations, known)["dot.2"] != "backward"


@pytest.mark.parametrize(
    ("scope", "model", "rest"),
    [
        ("jvp(loss)/Net/Dense_0", "forward", "loss"),
        ("jvp()/loss/Net", "forward", "loss"),
        ("jvp(loss)", "forward", "forward"),  # nothing tells them apart
    ],
)
def test_a_loss_around_the_model_does_not_swallow_forward(scope: str, model: str, rest: str) -> None:
    loss = "jvp()/loss" if "jvp()" in scope else "jvp(loss)"
    found = stages(
        ("dot.1", f"jit(step)/{scope}/dot_general", STEP),
        ("tanh", f"jit(step)/{scope}/tanh", STEP),
        ("sum", f"jit(step)/{loss}/reduce_sum", STEP),
        ("dot.2", f"jit(step)/transpose({scope.replace(')', '))', 1)}/dot_general", STEP),
    )
    assert found == {"dot.1": model, "tanh": model, "sum": rest, "dot.2": "backward"}


def test_a_product_in_the_loss_stays_there_if_the_model_has_others() -> None:
    found = stages(
        ("dot.1", "jit(step)/jvp(Net)/dot_general", STEP),
        ("dot.2", "jit(step)/jvp(loss)/head/dot_general", STEP),
        ("dot.3", "jit(step)/transpose(jvp(Net))/dot_general", STEP),
    )
    assert found == {"dot.1": "forward", "dot.2": "loss", "dot.3": "backward"}


def test_a_program_of_updates_alone_is_optimizer() -> None:
    backward = ("dot.2", "jit(grads)/transpose(jvp())/dot_general", ["train.py:9 grads"])
    for stack in (
        [OPTAX],
        ["train.py:30 apply_gradients"],
        [f"{SITE}/flax/training/train_state.py:8 TrainState.replace"],
    ):
        update = ("add", "jit(update)/add", ["train.py:40 update", *stack])
        assert stages(backward, update)["add"] == "optimizer"


def test_a_loss_of_optax_is_none_of_its_updates() -> None:
    loss = f"{SITE}/optax/losses/_classification.py:9 softmax_cross_entropy"
    found = stages(
        ("dot.2", "jit(grads)/transpose(jvp())/dot_general", ["train.py:9 grads"]),
        ("exp", "jit(evaluate)/exp", ["train.py:50 evaluate", loss]),
    )
    assert found["exp"] != "optimizer"


TRAINED = [
    ("dot.1", "jit(step)/jvp()/dot_general", ["train.py:9 step", "train.py:3 loss"]),
    ("dot.2", "jit(step)/transpose(jvp())/dot_general", ["train.py:9 step", "train.py:3 loss"]),
]


def test_a_program_that_runs_what_another_differentiates_is_evaluation() -> None:
    assert stages(
        *TRAINED,
        ("dot.3", "jit(validate)/dot_general", ["train.py:50 validate", "train.py:3 loss"]),
        ("mean", "jit(validate)/mean", ["train.py:51 validate"]),
        ("augment", "jit(load)/mul", ["train.py:60 load", "train.py:2 flip"]),
    ) == {
        "dot.1": "forward",
        "dot.2": "backward",
        "dot.3": "evaluation",
        "mean": "evaluation",
        "augment": "other",
    }


ROLLOUT = ("dot.3", "jit(rollout)/dot_general", ["train.py:50 rollout", "train.py:3 loss"])
TAKES = {"jit_step": {"takes": ["64x4:32", "64:32", "256x10:32"], "makes": ["4x4:32"]}}


@pytest.mark.parametrize(
    ("makes", "stage"),
    [
        (["64x4:32", "64:32"], "forward"),
        (["64x4:32", "64:8"], "forward"),
        (["10:32"], "evaluation"),
        ([], "evaluation"),
    ],
    ids=["what it trains with", "a part of it", "metrics", "a scalar"],
)
def test_a_program_that_makes_what_training_takes_is_forward(makes: list[str], stage: str) -> None:
    """Such as a rollout, or a teacher's targets; it runs in the only step."""
    made = {"jit_rollout": {"takes": ["4x4:32"], "makes": makes}}
    found = of_events(traced(*TRAINED, ROLLOUT, shapes={**TAKES, **made}), "stage")
    assert found["dot.3"] == stage


@pytest.mark.parametrize(
    ("makes", "stage"), [(["256x10:32"], "evaluation"), (["64x4:32", "64:32"], "forward")]
)
def test_results_shaped_like_labels_are_an_evaluation_now_and_then(makes: list[str], stage: str) -> None:
    """Its logits have the shape of the labels that training takes; it runs in one step of two."""
    drawn = traced(*TRAINED, ROLLOUT)
    again = annotate(
        drawn_trace(
            "main | 0 450 | train#step_num=0 | cat=annotation\n"
            "main | 450 500 | train#step_num=1 | cat=annotation"
        )
    )
    stages_ = drawn.events.text("stage").codes.astype(np.int64)
    program = np.array(
        [
            ["step", "rollout"].index(scope_of(text).program) if text else -1
            for text in drawn.events.text("scope")
        ]
    )
    stages_[program != 0] = -1
    made = {"jit_rollout": {"takes": [], "makes": makes}}
    trace = drawn.with_table(again["steps"]).with_metadata(properties={"program_shapes": {**TAKES, **made}})
    found = with_evaluation(trace, stages_, program, ["step", "rollout"])
    assert STAGES[found[program == 1][0]] == stage


def test_functions_of_libraries_and_the_compiled_function_itself_show_no_evaluation() -> None:
    """Both call `jnp.mean`; a schedule has the name of the step."""
    mean = f"{SITE}/jax/_src/numpy/reductions.py:9 mean"
    trained = [(name, scope, [*stack, mean]) for name, scope, stack in TRAINED]
    found = stages(*trained, ("mean", "jit(average)/mean", ["train.py:70 average", mean]))
    assert found["mean"] == "other"


def test_a_call_and_the_copies_of_the_compiler_have_the_stage_of_their_program() -> None:
    found = of_events(
        annotate(
            drawn_trace("""
                main |  0 300 | train#step_num=0
                main |  1  10 | PjitFunction(forward)  | cat=runtime
                main | 50  60 | PjitFunction(backward) | cat=runtime
                pool | 11  20 | copy.1 | scope=jit(forward)/xla::copy
                pool | 20  40 | dot.1  | scope=jit(forward)/jvp(Net)/dot_general
                pool | 61  70 | copy.2 | scope=jit(backward)/xla::copy
                pool | 70  90 | dot.2  | scope=jit(backward)/transpose(jvp(Net))/dot_general
            """)
        ),
        "stage",
    )
    assert {name: stage for name, stage in found.items() if name != "train#step_num=0"} == {
        "PjitFunction(forward)": "forward",
        "PjitFunction(backward)": "backward",
        "copy.1": "forward",
        "dot.1": "forward",
        "copy.2": "backward",
        "dot.2": "backward",
    }


def test_in_a_whole_step_the_copies_of_the_compiler_are_assigned_by_position() -> None:
    found = of_events(
        annotate(
            drawn_trace("""
                main |  0 300 | train#step_num=0
                main |  1  90 | PjitFunction(step) | cat=runtime
                pool | 20  40 | dot.1  | scope=jit(step)/jvp(Net)/dot_general
                pool | 40  50 | copy.1 | scope=jit(step)/xla::copy
                pool | 50  90 | dot.2  | scope=jit(step)/transpose(jvp(Net))/dot_general
            """)
        ),
        "stage",
    )
    assert (found["PjitFunction(step)"], found["copy.1"]) == ("other", "forward")


@pytest.mark.parametrize("kind", ["convolution", "gemm", "elementwise"])
@pytest.mark.parametrize("name", ["adam/mul", "cond/branch_0_fun/mul", "adam/dot_general", "sub"])
def test_a_product_that_xla_gave_the_name_of_its_factor_is_a_gradient(kind: str, name: str) -> None:
    """An update that multiplies matrices itself, as Shampoo does, has products of its own name."""
    drawn = traced(*TRAINED, ("product", f"jit(step)/{name}", ["train.py:9 step", OPTAX]))
    is_product = drawn.events.text("name").mask("product")
    kinds = Text(np.where(is_product, KERNEL_KINDS.index(kind), -1).astype(np.int8), KERNEL_KINDS)
    found = of_events(annotate(drawn.with_events(kind=kinds)), "stage")
    merged = kind != "elementwise" and not name.endswith("dot_general")
    assert found["product"] == ("backward" if merged else "optimizer")


def test_without_a_backward_pass_a_product_is_no_gradient() -> None:
    drawn = traced(("product", "jit(predict)/mul", ["train.py:9 predict"]))
    kinds = Text(np.full(len(drawn.events), KERNEL_KINDS.index("gemm"), np.int8), KERNEL_KINDS)
    assert of_events(annotate(drawn.with_events(kind=kinds)), "stage")["product"] == "forward"
