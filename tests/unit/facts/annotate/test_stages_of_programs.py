"""Stages of compiled programs, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
from test_frames_of_programs import with_frames

from stepscope.facts.annotate.jax import stages
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.testing import drawn_trace
from stepscope.trace.schema import INPUTS, ROLES, STAGES, STEPS
from stepscope.trace.table import Table, Text


def test_a_program_whose_operations_are_of_one_stage_has_it() -> None:
    stage, program = np.array([2, 2, -1, 3, 4, 5]), np.array([0, 0, 0, 1, 1, -1])
    assert stages._single_stages(stage, program, 3).tolist() == [2, -1, -1, -1]


def test_the_rest_of_a_program_is_assigned_by_its_place() -> None:
    lines = "\n".join(f"main | {row} {row + 1} | x" for row in range(7))
    trace = drawn_trace(lines).with_events(step=[0] * 6 + [-1])
    forward, backward = STAGES.index("forward"), STAGES.index("backward")
    stage = np.array([-1, forward, -1, backward, -1, -1, -1])
    stages._assign_by_position(trace, stage, np.array([0, 0, 0, 0, 0, 1, 0]))
    assert [STAGES[code] if code >= 0 else None for code in stage.tolist()] == [
        *("other", "forward", "forward", "backward", "optimizer", None, None)
    ]


@pytest.mark.parametrize(
    ("scope", "kind", "is_merged"),
    [
        *(
            (f"jit(f)/{name}", "gemm", True)
            for name in ("add", "select_n", "broadcast_in_dim", "integer_pow")
        ),
        ("jit(f)/mul", "convolution", True),
        ("jit(f)/mul", "elementwise", False),
        ("jit(f)/jvp()/mul", "gemm", False),
        ("jit(f)/dot_general", "gemm", False),
        ("jit(f)/add_any", "gemm", False),
    ],
)
def test_products_named_after_elementwise_operations_are_merged_gradients(
    scope: str, kind: str, is_merged: bool
) -> None:
    trace = drawn_trace(f"main | 0 9 | x | scope={scope}").with_events(kind=Text.of([kind]))
    assert stages.merged_gradients(trace).tolist() == [is_merged]


def test_collectives_that_take_gradients_alone_sum_them() -> None:
    names = ["psum", "pmean", "all_reduce", "reduce_scatter", "all_gather", "add", "psum", "psum", "psum2"]
    origin = [0, 0, 0, 0, 0, 0, 1, 2, 0]
    lines = [f"main | {row} {row + 1} | x | scope=jit(f)/{name}" for row, name in enumerate(names)]
    inputs = Table(INPUTS, {"first": [0, 1, 2, 2], "argument": Text.of([None, "x", None, "x"])})
    trace = drawn_trace("\n".join(lines)).with_events(origin=origin).with_table(inputs)
    assert np.flatnonzero(~stages.sums_gradients(trace)).tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("calls", "traced", "old", "backward", "unknown"),
    [
        (4, 1, False, False, True),  # less than one operation for two calls
        (4, 2, False, False, False),
        (4, 1, False, True, False),
        (1, 4, True, False, True),  # scopes that hide what is differentiated
        (0, 0, False, False, False),
    ],
)
def test_passes_are_unknown_where_scopes_say_little(
    calls: int, traced: int, old: bool, backward: bool, unknown: bool
) -> None:
    lines = [f"main | {row} {row + 1} | PjitFunction(f) | cat=runtime" for row in range(calls)]
    scope = "jit(f)/jit(main)/add" if old else "jit(f)/add"
    lines += [f"pool | {row} {row + 1} | x | scope={scope}" for row in range(traced)]
    trace = drawn_trace("\n".join([*lines, "main | 90 91 | last"]))
    stage = np.full(len(trace.events), -1, np.int8)
    stage[-1] = STAGES.index("backward") if backward else -1
    assert stages.passes_are_unknown(trace, stage) is unknown
    told = stages.warn_unknown_passes(trace.with_events(stage=Text(stage, STAGES)))
    assert len(told["warnings"]) == unknown
    of_json = stages.warn_unknown_passes(trace.with_metadata(format="trace events"))
    if unknown and not backward:
        assert "as JSON lacks" in next(of_json["warnings"].rows())["message"]
        assert next(told["warnings"].rows())["code"] == "unknown_passes"
        assert "as with JAX before 0.8" in next(told["warnings"].rows())["message"]


def test_layers_with_gradients_are_forward_and_others_other() -> None:
    texts = [
        "gradient_tape/model/dense/X/Y",
        "PartitionedCall/model/dense/Relu",
        "PartitionedCall/data/Map",
        "adam/x",
        "jit(f)/add",
    ]
    assert [scope.stage for scope in stages._with_layers(texts)] == [
        "backward",
        "forward",
        "other",
        "optimizer",
        None,
    ]
    assert [scope.stage for scope in stages._with_layers(texts[1:3])] == [None, None]


def test_programs_named_as_passes_are_these_if_one_is_backward() -> None:
    given = [scope_of(f"jit({name})/add") for name in ("forward", "backward", "optimizer", "other")]
    stage, codes = np.array([-1, -1, -1, -1, 5]), np.array([0, 1, 2, 3, 1])
    found = stages._with_named_passes(stage, given, codes)
    assert [STAGES[code] if code >= 0 else None for code in found] == [
        "forward",
        "backward",
        None,
        None,
        STAGES[5],
    ]
    alone = stages._with_named_passes(stage[:1], given[:1], codes[:1])
    assert alone.tolist() == [-1]


@pytest.mark.parametrize(
    ("role", "stage"),
    [
        ("data", "forward"),
        ("constant", "forward"),
        ("pass", "forward"),
        ("update", "evaluation"),
        ("result", "evaluation"),
    ],
)
def test_what_runs_what_is_trained_makes_targets_or_evaluates(role: str, stage: str) -> None:
    """The user's function `net` multiplies in the forward pass; then an operation below it in none."""
    rows = [
        *((-1, "step", "t.py", 1), (0, "net", "n.py", 2), (1, "dot", "/v/site-packages/jax/x.py", 3)),
        *((0, "evaluate", "t.py", 9), (3, "net", "n.py", 2), (3, "other", "n.py", 5)),
    ]
    origins = [
        {"first": n, "scope": "jit(step)/x", "frame": frame, "share": 1.0}
        for n, frame in enumerate((2, 4, 5))
    ]
    base = with_frames(rows, origins)
    lines = [
        "main | 0 9 | a | scope=jit(step)/jvp()/dot",
        "main | 10 19 | b | scope=jit(step)/add",
        "main | 20 29 | c | scope=jit(step)/add",
    ]
    trace = drawn_trace("\n".join(lines)).with_table(base["frames"])
    table = base["origins"].with_columns(role=Text.of([None, role, role]).recoded(ROLES))
    trace = trace.with_table(table).with_events(origin=[0, 1, 2], kind=Text.of(["gemm", None, None]))
    given = np.array([STAGES.index("forward"), -1, -1])
    found = stages.with_trained_functions(trace, given)
    assert [STAGES[code] if code >= 0 else None for code in found] == ["forward", stage, None]
    known = np.array([STAGES.index("forward"), STAGES.index("loss"), -1])
    assert stages.with_trained_functions(trace, known).tolist() == known.tolist()


@pytest.mark.parametrize(
    ("origin", "makes", "steps", "stage"),
    [
        (1, [], [0, 1], "evaluation"),
        (2, [], [0, 1], None),  # runs nothing that is trained
        (1, ["f32[2]", "f32[3]"], [0, 1], "forward"),  # makes what training takes
        (1, ["f32[2]", "f32[9]"], [0, 1], "evaluation"),  # one shape may be that of labels
        (1, ["f32[2]", "f32[9]"], [0], "forward"),  # unless every step runs it
        (1, ["f32[9]"], [0], "evaluation"),
    ],
)
def test_a_program_that_runs_what_is_trained_evaluates_or_makes_data(
    origin: int, makes: list[str], steps: list[int], stage: str | None
) -> None:
    rows = [
        *((-1, "step", "t.py", 1), (0, "net", "n.py", 2), (-1, "evaluate", "t.py", 9)),
        *((2, "net", "n.py", 2), (2, "other", "n.py", 5)),
    ]
    origins = [
        {"first": number, "scope": f"jit({name})/x", "frame": frame, "share": 1.0}
        for number, (name, frame) in enumerate([("step", 1), ("evaluate", 3), ("evaluate", 4)])
    ]
    base = with_frames(rows, origins)
    text = "main | 0 9 | a | scope=jit(step)/jvp()/dot\nmain | 10 19 | b | scope=jit(evaluate)/add"
    shapes = {"jit_evaluate": {"makes": makes}, "jit_step": {"takes": ["f32[2]", "f32[3]"]}}
    trace = drawn_trace(text, properties={"program_shapes": shapes})
    trace = (
        trace.with_table(base["frames"]).with_table(base["origins"]).with_table(Table(STEPS, {"step": steps}))
    )
    trace = trace.with_events(origin=[0, origin], step=[0, 0])
    given, program = np.array([STAGES.index("forward"), -1]), np.array([0, 1])
    found = stages.with_evaluation(trace, given, program, ["step", "evaluate"])
    assert [STAGES[code] if code >= 0 else None for code in found] == ["forward", stage]
    known = np.array([STAGES.index("forward"), STAGES.index("loss")])
    assert stages.with_evaluation(trace, known, program, ["step", "evaluate"]).tolist() == known.tolist()
