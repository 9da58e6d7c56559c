"""Calls, scopes, frames and parameters of compiled programs, rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate.jax import calls as of_calls
from stepscope.facts.annotate.jax import device_runs, modules, parameters, scopes, stages
from stepscope.facts.annotate.jax.calls import (
    BEFORE_RECORDING,
    UNKNOWN,
    CallWaits,
    call_around,
    call_starts,
    called_function,
    calls_in_order,
    calls_of_host_work,
    is_compiled_call,
    is_training_call,
    is_wait,
    iterations_by_calls,
    waits_for_calls,
)
from stepscope.facts.annotate.jax.frames import frames_below_call, frames_of_events, in_optimizer, is_users
from stepscope.facts.annotate.jax.parameters import Size, owner_of, parameter_sizes, sizes_by_use
from stepscope.facts.annotate.jax.scopes import operation_name, primitives, programs, scope_of, scopes_of
from stepscope.facts.annotate.jax.stages import hides_transformations
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, INPUTS, ORIGINS, ROLES, STAGES, STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

# -- scopes

SCOPES = [
    ("jit(f)/add", "f", None, False, "", "add", ""),
    ("jit(f)/jvp(Net)/Dense_0/dot_general", "f", "forward", False, "Net Dense_0", "dot_general", ""),
    (
        "jit(f)/transpose(jvp(Net))/Dense_0/dot_general",
        "f",
        "backward",
        False,
        "Net Dense_0",
        "dot_general",
        "",
    ),
    ("pmap(f)/pjit(g)/jvp()/mul", "f", "forward", False, "", "mul", ""),
    ("jit(f)/jvp(vmap())/while/body/closed_call/tanh", "f", "forward", False, "", "tanh", "vmap scan"),
    ("jit(f)/while/body/tanh", "f", None, False, "", "tanh", "while"),
    ("jit(f)/cond/branch_1_fun/tanh", "f", None, False, "", "tanh", "cond"),
    (
        "jit(f)/transpose(jvp(Net))/checkpoint/rematted_computation/tanh",
        *("f", "backward", True, "Net", "tanh", "remat recomputed"),
    ),
    ("jit(f)/jvp(Net)/rematted_computation/tanh", "f", "forward", False, "Net", "tanh", "recomputed"),
    ("jit(f)/shard_map/pallas_call/tanh", "f", None, False, "", "tanh", "shard_map pallas_call"),
    ("jit(f)/jvp(Net)/remat2/scan/x", "f", "forward", False, "Net", "x", "remat scan"),
    ("jit(f)/A/ab->c/f.<locals>.g/dot", "f", None, False, "A", "dot", ""),
    ("jit(f)/jvp(A)/B/transpose(jvp(A))/C/x", "f", "backward", False, "A C", "x", ""),
    ("jit(f)/compute_loss/sub", "f", "loss", False, "compute_loss", "sub", ""),
    ("jit(f)/optimizer/add", "f", "optimizer", False, "optimizer", "add", ""),
    ("jit(f)/backward/add", "f", "backward", False, "backward", "add", ""),
    ("jit(f)/backward_rnn/add", "f", None, False, "backward_rnn", "add", ""),
    ("jit(f)/jvp(bwd_pass)/add", "f", "forward", False, "bwd_pass", "add", ""),
    ("jit(f)/Net/add;jit(f)/Other/mul", "f", None, False, "Net", "add", ""),
    ("jit(f)/jvp(Net)/(A/add:A/mul)", "f", "forward", False, "Net A", "add", ""),
    ("jit(f)/jvp(Net)/(A/add:B/mul)", "f", "forward", False, "Net", "add", ""),
    ("add", "", None, False, "", "add", ""),
    ("gradient_tape/model/dense/MatMul/MatMul_1", "", "backward", False, "model dense", "MatMul_1", ""),
    ("adam/Sub_2", "", "optimizer", False, "adam", "Sub_2", ""),
    ("PartitionedCall_1/model/dense/Relu", "", None, False, "model dense", "Relu", ""),
    ("mean_squared_error/Mean", "", "loss", False, "mean_squared_error", "Mean", ""),
    ("model/dense/Relu", "", None, False, "model dense", "Relu", ""),
]


@pytest.mark.parametrize(("text", "program", "stage", "again", "names", "primitive", "inside"), SCOPES)
def test_a_scope_has_its_parts(
    text: str, program: str, stage: str | None, again: bool, names: str, primitive: str, inside: str
) -> None:
    found = scope_of(text)
    assert (found.program, found.stage, found.recompute, found.primitive) == (
        program,
        stage,
        again,
        primitive,
    )
    assert (" ".join(found.modules), " ".join(found.inside)) == (names, inside)
    assert found.innermost == (names.split()[-1] if names else "")


def test_what_is_named_a_loss_need_not_be_one() -> None:
    assert scope_of("jit(f)/jvp(loss)/add").stage == "loss"
    assert scope_of("jit(f)/jvp(loss)/add", has_loss=False).stage == "forward"
    texts = [
        *("jit(f)/jvp(loss)/Net/dot_general", "jit(f)/jvp(loss)/sub"),  # it calls the model
        *("jit(g)/jvp(Net)/dot_general", "jit(g)/jvp(loss)/dot_general"),
        *("jit(h)/jvp(loss)/dot_general", "jit(h)/jvp(loss)/sub"),
    ]
    assert [scope.stage for scope in scopes_of(texts)] == [
        *("forward", "loss", "forward", "loss"),
        *("forward", "forward"),
    ]
    assert list(primitives(Text.of([*texts[:2], None]))) == ["dot_general", "sub", None]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gradients_1/model/dense/MatMul_grad/MatMul", ("backward", ("model", "dense"), "MatMul")),
        ("gradient_tape/model/dense/x/y", ("backward", ("model", "dense", "x"), "y")),
        ("StatefulPartitionedCall/StatefulPartitionedCall_2/dense/Relu", (None, ("dense",), "Relu")),
        ("AdamW/x", ("optimizer", ("AdamW",), "x")),
        ("loss_scale_optimizer_1/x", ("optimizer", ("loss_scale_optimizer_1",), "x")),
        ("my_loss/x", ("loss", ("my_loss",), "x")),
        ("categorical_crossentropy/x", ("loss", ("categorical_crossentropy",), "x")),
        *((text, None) for text in ("dense/Relu", "Relu", "jit(f)/adam/x", "glossary/x", "adamant/x")),
    ],
)
def test_names_of_tensorflow_have_a_form_of_their_own(text: str, name: tuple[Any, ...] | None) -> None:
    assert operation_name(text) == name


def test_gradients_tell_layers_and_events_their_programs() -> None:
    texts = ["gradient_tape/a/b/X/Y", "gradients/c/X/Y", "adam/x", "PartitionedCall/d/e/F"]
    assert scopes.layers_with_gradients(texts) == {"a", "c"}
    events = drawn_trace("""
        a | 0 1 | x | scope=jit(f)/x corr=1
        a | 2 3 | x | scope=jit(g)/x corr=2
        a | 4 5 | x | scope=jit(f)/y corr=3
        a | 6 7 | x | corr=5
        a | 8 9 | x | corr=6
    """).events
    found = programs(events, np.arange(5)).tolist()
    assert found[0] == found[2]
    assert len({*found}) == 4
    assert found[4] - found[3] == 1
    assert scopes.loads_next_batch("IteratorGetNextOp::DoCompute")
    assert not scopes.loads_next_batch("aIteratorGetNextOp::DoCompute")


@pytest.mark.parametrize(
    ("texts", "hides"),
    [
        (["jit(f)/jit(main)/dot"], True),
        (["jit(f)/jit(main)/dot", "jit(f)/jit(main)/jvp(Net)/dot"], False),
        (["jit(f)/jit(main)/Net/dot"], False),
        (["jit(f)/dot"], False),
        ([None, ""], False),
    ],
)
def test_old_scopes_may_hide_what_is_differentiated(texts: list[str | None], hides: bool) -> None:
    assert hides_transformations(texts) is hides


# -- calls

CALLS = ["PjitFunction(f)", "JaxPmapFunction(f)", "PjitFunction(f(x))"]


def test_calls_and_waits_are_known_by_name() -> None:
    assert [called_function(name) for name in CALLS] == ["f", "f", "f(x)"]
    assert called_function("f") == "f"
    assert [is_compiled_call(name) for name in (*CALLS, "xPjitFunction(f)", "stepscope.gradient")] == [
        True
    ] * 3 + [False] * 2
    assert [is_training_call(name) for name in (CALLS[0], "stepscope.gradient", "gradient")] == [
        True,
        True,
        False,
    ]
    waits = ["BlockHostUntilReady", "Buffer::Await", "wait: float(x)", "ArrayImpl.copy_to_host_async"]
    assert all(map(is_wait, waits))
    assert not any(map(is_wait, ["Buffer::Awaits", "a wait: x", "xArrayImpl.copy_to_host_async", "f"]))


@pytest.mark.parametrize(
    ("begin", "called", "found"),
    [
        ([10, 20, 30], [0, 15, 25], [0, 1, 2]),
        ([10, 20, 30], [15, 25], [-2, 0, 1]),  # the first was called before
        ([10, 20], [15, 18], [-2, 0]),
        ([10, 20, 30], [5, 25, 26], [-2, 0, 1]),
        ([10], [5, 6], [0]),
        ([10, 20], [], [-2, -2]),
        ([], [5], []),
    ],
)
def test_runs_belong_to_calls_in_their_order(begin: list[int], called: list[int], found: list[int]) -> None:
    calls = np.arange(len(called))
    assert calls_in_order(np.array(begin), calls, np.array(called, np.int64)).tolist() == found
    assert (UNKNOWN, BEFORE_RECORDING) == (-1, -2)


def test_a_call_recorded_in_itself_is_one() -> None:
    trace = drawn_trace("""
        main | 0 90 | PjitFunction(f) | cat=runtime
        main | 5 80 | PjitFunction(f) | cat=runtime
        main | 6 70 | PjitFunction(f) | cat=runtime
        main | 7 60 | PjitFunction(g) | cat=runtime
        main | 8 50 | aten::x
        main | 95 99 | aten::y
    """)
    assert call_around(trace).tolist() == [0, 0, 0, 3, 3, -1]


def test_work_of_the_host_belongs_to_the_call_of_its_run() -> None:
    """By ids of runs; the last run has no call with its id, and is of the call that is left."""
    trace = drawn_trace("""
        main |   0 20 | PjitFunction(f) | cat=runtime
        main |   5 10 | Executable::Execute | cat=runtime corr=1
        pool |  12 40 | fusion | scope=jit(f)/a corr=1
        pool |  15 20 | inside
        main |  50 70 | PjitFunction(g) | cat=runtime
        pool |  75 80 | other | scope=jit(g)/a corr=2
        pool |  85 90 | again | scope=jit(h)/a corr=3
    """)
    found = calls_of_host_work(trace).tolist()
    names = list(trace.events.text("name"))
    assert dict(zip(names, found, strict=True)) == {
        **{"PjitFunction(f)": -1, "Executable::Execute": -1, "fusion": 0, "inside": 0},
        **{"PjitFunction(g)": -1, "other": 4, "again": -1},
    }
    assert set(calls_of_host_work(drawn_trace("pool | 0 9 | x | scope=jit(f)/a corr=1")).tolist()) == {-1}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], [0, 60]),  # none is seen to execute: the outermost
        (["main | 10 20 | PjRtExecutable::Execute | cat=runtime"], [0, 5, 60]),
        (
            [
                "main | 10 20 | Executable::Execute | cat=runtime",
                "main | 65 70 | Executable::Execute | cat=runtime",
            ],
            [5, 60],
        ),
    ],
)
def test_calls_that_execute_a_program(lines: list[str], found: list[int]) -> None:
    calls = [(0, 50, "f"), (5, 40, "g"), (60, 90, "f")]
    text = [f"main | {start} {end} | PjitFunction({name}) | cat=runtime" for start, end, name in calls]
    trace = drawn_trace("\n".join([*text, *lines]))
    assert (trace.events["start_ns"][of_calls._Calls(trace).rows] // 1000).tolist() == found


def test_a_program_that_executes_after_all_calls_was_called_in_one_itself() -> None:
    trace = drawn_trace("""
        main |  0 20 | PjitFunction(f) | cat=runtime
        main |  5 10 | Executable::Execute | cat=runtime
        main | 30 50 | Executable::Execute | cat=runtime
        main | 31 40 | Executable::ExecuteHelper | cat=runtime
        pool | 60 70 | Executable::Execute | cat=runtime
    """)
    assert (of_calls._Calls(trace).cut_off // 1000).tolist() == [30]


def test_the_run_of_an_event_spreads_to_what_is_around_and_inside_it() -> None:
    parent = np.array([-1, 0, 1, 1, 3, -1], np.int32)
    run = np.array([-1, -1, 5, 7, -1, -1])
    assert of_calls._spread(parent, run).tolist() == [5, 5, 5, 7, 7, -1]
    assert of_calls._spread(parent, np.full(6, -1)).tolist() == [-1] * 6


def test_a_thread_waits_from_the_start_of_a_wait_to_its_end() -> None:
    waits = CallWaits(np.array([10, 30]), np.array([20, 40]), np.array([3, -1]))
    assert waits.at(np.array([9, 10, 19, 20, 29, 30, 39, 40])).tolist() == [-1, 3, 3, -1, -1, -1, -1, -1]
    none = CallWaits(*(np.zeros(0, np.int64) for _ in range(3)))
    assert none.at(np.array([5])).tolist() == [-1]


def test_a_wait_is_for_the_last_call_before_it() -> None:
    """Who waits for arrays may wait for data, who reads a value for a program; else for its last work."""
    trace = drawn_trace("""
        main |   0 10 | PjitFunction(f) | cat=runtime
        main |  12 20 | wait: float(x) | cat=runtime
        main |  22 24 | BatchedDevicePut | cat=runtime
        main |  25 30 | jax.block_until_ready wait | cat=runtime
        main |  31 33 | BlockHostUntilReady | cat=runtime
        main |  34 36 | wait: float(y) | cat=runtime
        main |  40 60 | PjitFunction(g) | cat=runtime
        main |  45 50 | wait: inside | cat=runtime
        pool |  61 65 | a | scope=jit(g)/a
        pool |  62 69 | b | scope=jit(g)/b
        main |  70 75 | wait: float(z) | cat=runtime
        main |  76 77 | wait: float(z) | cat=runtime
    """)
    stage = {"PjitFunction(f)": "forward", "BatchedDevicePut": "transfer", "a": "loss", "b": "backward"}
    trace = trace.with_events(stage=Text.of(stage.get(name or "") for name in trace.events.text("name")))
    waits = waits_for_calls(trace, 0)
    found = [None if code < 0 else STAGES[code] for code in waits.stage.tolist()]
    begin = (waits.starts // 1000).tolist()
    assert dict(zip(begin, found, strict=True)) == {
        **{12: "forward", 31: "transfer", 34: "forward", 70: "backward", 76: "backward"}
    }


@pytest.mark.parametrize(
    ("row", "found", "last_is_whole"),
    [
        ("f....f....f....", [0, 5, 10], True),
        ("f.g..f.g..f.g..", [0, 5, 10], True),
        ("f.g..f.g..f....", [0, 5, 10], False),
        (".g.f..g.f..g.f", [1, 6, 11], True),  # the pause is before g
        ("f....", None, False),
        ("f.g", None, False),
        ("f.hh.f.hh.f.hh.", [0, 5, 10], True),
    ],
)
def test_iterations_begin_after_the_longest_pause(
    row: str, found: list[int] | None, last_is_whole: bool
) -> None:
    lines = [
        f"main | {10 * place} {10 * place + 9} | PjitFunction({letter}) | cat=runtime"
        for place, letter in enumerate(row)
        if letter != "."
    ]
    iterations = iterations_by_calls(drawn_trace("\n".join(["main | 0 0 | x", *lines])), 0)
    if found is None:
        assert iterations is None
        return
    assert iterations is not None
    assert (iterations.starts // 10_000).tolist() == found
    assert iterations.last_is_whole is last_is_whole


def test_steps_begin_with_the_call_around_their_event() -> None:
    trace = drawn_trace("""
        main |  0 50 | PjitFunction(f) | cat=runtime
        main | 10 40 | PjitFunction(g) | cat=runtime
        main | 20 30 | stepscope.step#1 | cat=annotation
        main | 60 70 | stepscope.step#2 | cat=annotation
    """)
    assert (call_starts(trace, np.array([2, 3])) // 1000).tolist() == [0, 60]


# -- frames

RUNNER = "/x/stepscope/record/script_runner.py"


def with_frames(rows: list[tuple[int, str, str, int]], origins: list[dict[str, Any]] | None = None) -> Trace:
    """A trace with a table of frames (parent, function, file, line), and of origins."""
    parent, function, file, line = zip(*rows, strict=True)
    table = Table(FRAMES, {"parent": parent, "function": function, "file": file, "line": line})
    given = origins or [{"first": 0, "scope": "jit(step)/x", "frame": -1, "share": 1.0}]
    columns = {name: [row[name] for row in given] for name in ("first", "scope", "frame", "share")}
    return drawn_trace("main | 0 9 | x").with_table(table).with_table(Table(ORIGINS, columns))


def test_frames_begin_below_the_compiled_function() -> None:
    rows = [
        (-1, "run", RUNNER, 1),
        (0, "<module>", "train.py", 3),
        (1, "stepscope", "/x/stepscope/record/hooks.py", 9),
        (2, "Trainer.step", "train.py", 5),  # the compiled function
        (3, "loss", "train.py", 7),
        (4, "Trainer.step", "train.py", 5),  # the stack, once more
        (5, "loss", "train.py", 7),
        (6, "net", "net.py", 2),
        (7, "step", "other.py", 9),  # a function of the same name in it
    ]
    outer, kept = frames_below_call(with_frames(rows))
    assert kept.tolist() == [0, 1, 1, 3, 4, 3, 4, 7, 8]
    assert outer.tolist() == [-1, -1, -1, -1, 3, -1, -1, 4, 7]


def test_an_event_has_the_frame_of_its_largest_origin() -> None:
    origins = [
        {"first": 0, "scope": "", "frame": 5, "share": 0.3},
        {"first": 0, "scope": "", "frame": 6, "share": 0.7},
        {"first": 2, "scope": "", "frame": 7, "share": 0.5},
        {"first": 2, "scope": "", "frame": 8, "share": 0.5},
    ]
    trace = with_frames([(-1, "f", "a.py", 1)], origins)
    found = [frames_of_events(trace.with_events(origin=[origin]))[0] for origin in (0, 2, -1)]
    assert found == [6, 7, -1]


@pytest.mark.parametrize(
    ("is_one", "function", "file"),
    [
        *(
            (True, "f", f"/p/{name}.py")
            for name in ("optax/_src/adam", "optax/contrib/x", "keras/src/optimizers/a")
        ),
        *(
            (True, "f", f"/p/{name}.py")
            for name in ("flax/nnx/training/optimizer", "flax/training/train_state")
        ),
        *(
            (True, "f", f"/p/{name}.py")
            for name in ("equinox/_update", "jaxopt/_src/x", "optax/transforms/a")
        ),
        (True, "f", "/p/jax/example_libraries/optimizers.py"),
        *(
            (True, name, "a.py")
            for name in ("apply_gradients", "T.apply_updates", "optimizer_step", "adam_update")
        ),
        *((True, name, "a.py") for name in ("sgd_step", "apply_grad", "optimiser_update", "lion_step")),
        *((False, name, "a.py") for name in ("my_apply_updatesx", "adam", "updates", "xapply_grads")),
        *(
            (False, "f", f"/p/{name}.py")
            for name in ("optax/_src/loss", "flax/core/x", "optax/x", "equinox/_updates")
        ),
    ],
)
def test_an_optimizers_frames_are_known_by_file_or_function(is_one: bool, function: str, file: str) -> None:
    origins = [{"first": 0, "scope": "", "frame": 1, "share": 1.0}]
    trace = with_frames([(-1, function, file, 1), (0, "inner", "b.py", 2)], origins)
    assert in_optimizer(trace.with_events(origin=[0])).tolist() == [is_one]
    assert in_optimizer(trace.with_events(origin=[-1])).tolist() == [False]


def test_files_of_packages_and_of_the_recorder_are_not_the_users() -> None:
    assert all(map(is_users, ["/home/me/train.py", "train.py", "/me/site-packages.py", "/a/stepscope/x.py"]))
    others = ["", "<stdin>", "/v/site-packages/a.py", "dist-packages/a.py", "/usr/lib/python3.11/a.py"]
    assert not any(map(is_users, [*others, RUNNER, "/a/stepscope/capture/b.py"]))


# -- parameters

LINEN = [
    ("params['params']['Dense_0']['kernel']", 6, 24),
    ("params['params']['Dense_0']['bias']", 2, 8),
    ("params['params']['Block']['Dense_0']['kernel']", 10, 40),
    ("state[0].mu['params']['Dense_0']['kernel']", 6, 24),
    ("x", 99, 99),
]
PATHS = [("Net",), ("Net", "Dense_0"), ("Net", "Block"), ("Net", "Block", "Dense_0")]


def test_parameters_of_a_module_include_those_of_its_children() -> None:
    assert parameter_sizes(LINEN, PATHS) == {
        ("Net",): Size(18, 72),
        ("Net", "Dense_0"): Size(8, 32),
        ("Net", "Block"): Size(10, 40),
        ("Net", "Block", "Dense_0"): Size(10, 40),
    }
    haiku = [("params['net/~/a']['w']", 3, 12), ("params['net/~/b']['w']", 4, 16)]
    assert parameter_sizes(haiku, [("net",), ("net", "~", "a"), ("net", "~", "b")])[("net",)] == Size(7, 28)
    assert parameter_sizes([("x", 3, 12), ("y['a']", 3, 12)], PATHS) == {}
    assert sizes_by_use([(("a", "b"), 2, 8), (("a",), 1, 4), (("a", "b"), 3, 12)]) == {
        ("a",): Size(6, 24),
        ("a", "b"): Size(5, 20),
    }


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("state[0].mu['params']['Dense_0']['kernel']", ("Net", "Dense_0")),
        ("params['Net']['Block']['Dense_0']['kernel']", ("Net", "Block", "Dense_0")),
        ("params['Other']['kernel']", ()),
        ("Dense_0", ()),
    ],
)
def test_an_argument_is_owned_by_the_module_that_its_name_holds(name: str, owner: tuple[str, ...]) -> None:
    assert owner_of(name, PATHS) == owner
    assert owner_of(name, [*PATHS, ("Second",)]) in ((), owner)
    assert parameters._keys("a[0].b['c/d'].e") == ("a", "0", "b", "c", "d", "e")
    assert parameters._root(PATHS) == ("Net",)
    assert parameters._root([*PATHS, ("Second",)]) == ()


# -- modules by stacks and functions


def test_the_functions_that_all_stacks_share_are_no_modules() -> None:
    table = Table(
        FRAMES,
        {
            "function": ["step", "loss", "Net.layer", "<lambda>", "inner", "other"],
            "file": ["t.py", "t.py", "n.py", "n.py", "/v/site-packages/a.py", "n.py"],
        },
    )
    outer = np.array([-1, 0, 1, 2, 3, 1])
    names = modules.function_names(table, outer, np.array([4, 5]))
    assert names == ["", "", "layer", "", "", "other"]
    assert modules.function_names(table, outer, np.array([], np.int64)) == [""] * 6
    assert modules._depth_of_all([[("a", ""), ("b", "")], [("a", ""), ("c", "")]]) == 1
    assert modules._depth_of_all([]) == 0


@pytest.mark.parametrize(
    ("function", "file", "kind"),
    [
        ("Dense.__call__", "m.py", "Dense"),
        ("Net.forward", "/v/site-packages/flax/nnx/nn/linear.py", "Net"),
        ("Dense.__call__", "/v/site-packages/flax/linen/linear.py", ""),
        ("Jit.__call__", "/v/site-packages/flax/nnx/transforms/x.py", ""),
        ("Dense.__call__", "/v/site-packages/jax/x.py", ""),
        ("A.call", "m.py", ""),
        ("f", "m.py", ""),
        ("A.B.__call__", "m.py", ""),
    ],
)
def test_calls_of_classes_are_modules_unless_a_framework_names_scopes(
    function: str, file: str, kind: str
) -> None:
    assert modules._class_of(function, file) == kind


def test_siblings_of_one_class_are_numbered_in_order() -> None:
    place = modules._CalledPlace
    places = [
        place(-1, "Net", "t.py", 3),
        place(0, "Dense", "n.py", 5),
        place(0, "Dense", "n.py", 6),
        place(0, "Norm", "n.py", 7),
    ]
    found = modules._modules(places, {0: 0, 1: 1, 2: 2, 3: 3})
    assert [(one.path, one.name, one.kind, one.parent) for one in found] == [
        *(("Net", "Net", "Net", -1), ("Net.Dense_0", "Dense_0", "Dense", 0)),
        *(("Net.Dense_1", "Dense_1", "Dense", 0), ("Net.Norm", "Norm", "Norm", 0)),
    ]
    assert found[2].facts == {"call_file": "n.py", "call_line": 6}
    evaluated = [
        *places,
        place(-1, "Net", "e.py", 9),
        place(4, "Norm", "n.py", 7),
        place(-1, "Other", "e.py", 1),
        place(4, "Norm", "n.py", 8),
    ]
    assert modules._alike(evaluated, {0: 0, 1: 1, 2: 2, 3: 3}) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 3}


def test_a_module_is_called_as_often_as_its_most_frequent_operation() -> None:
    names = "aabbbca"
    lines = [f"main | {row} {row + 1} | {name}" for row, name in enumerate(names)]
    trace = drawn_trace("\n".join(lines))
    trace = trace.with_events(stage=Text.of([*["forward"] * 6, "backward"]))
    call_of = np.array([1, 1, 1, 2, 2, 2, 1], np.int32)
    tree = [Module("r"), Module("r.a", parent=0), Module("r.b", parent=0), Module("r.b.c", parent=2)]
    assert modules.most_repeated(trace.events, call_of, tree).tolist() == [2, 2, 2, 0]
    assert modules.most_repeated(trace.events, np.full(7, -1, np.int32), tree).tolist() == [0] * 4


def test_evaluations_get_modules_from_where_they_were_traced() -> None:
    origins = [
        {"first": row, "scope": "", "frame": frame, "share": 1.0} for row, frame in enumerate((4, -1, 4, 5))
    ]
    trace = with_frames([(-1, "f", "a.py", 1)], origins)
    lines = "\n".join(f"main | {row} {row + 1} | x | scope=s{row % 2}" for row in range(5))
    trace = drawn_trace(lines).with_table(trace["origins"]).with_table(trace["frames"])
    stage = ["evaluation", "evaluation", "evaluation", "forward", "evaluation"]
    trace = trace.with_events(stage=Text.of(stage), origin=[0, 1, 2, 3, -1])
    asked: list[tuple[str, int]] = []

    def of_origin(scope: str, frame: int) -> int:
        asked.append((scope, frame))
        return frame

    call_of = np.array([-1, -1, 7, 6, -1], np.int32)
    found = modules.with_evaluation(trace, Evidence("stacks", [], call_of, of_origin=of_origin))
    assert (found.tolist(), found.dtype) == ([4, -1, 7, 6, -1], np.int32)
    assert sorted(asked) == [("s0", 4), ("s1", -1)]


# -- stages of programs


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


# -- runs on devices


def device_trace(*operations: tuple[str, int]) -> Trace:
    return drawn_trace("\n".join(f"stream 1 | {at} {at + 1} | {name}" for name, at in operations))


@pytest.mark.parametrize(
    ("row", "calls", "first"),
    [
        ("abc.abc.abc", 3, [0, 4, 8]),
        ("bca.bca.bca", 3, [0, 4, 8]),
        ("aab.aab.aab", 3, [2, 6, 10]),  # b occurs as often as the program was called
        ("ab....cab....cab....c", 3, [6, 13, 20]),  # the device waits longest before c
    ],
)
def test_a_run_begins_with_the_operation_that_occurs_as_often_as_calls(
    row: str, calls: int, first: list[int]
) -> None:
    places = [place for place, letter in enumerate(row) if letter != "."]
    trace = device_trace(*((row[place], place) for place in places))
    found = device_runs._first_of_runs(trace, np.arange(len(places), dtype=np.int32), calls)
    assert [place for place, begins in zip(places, found.tolist(), strict=True) if begins] == first


def test_the_pause_before_work_is_a_median() -> None:
    trace = device_trace(("a", 0), ("b", 3), ("a", 9), ("b", 10), ("a", 20))
    work = np.arange(5, dtype=np.int32)
    chosen = trace.events.text("name").mask("a")
    assert device_runs._median_pause(trace, work, chosen) == 7_000
    assert device_runs._median_pause(trace, work, ~chosen) == 0
    assert device_runs._median_pause(trace, work[:1], chosen[:1]) == 0


def test_work_is_called_for_when_its_program_or_launch_is() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0 10 | PjitFunction(f) | cat=runtime
        other    | 20 22 | cudaLaunchKernel | corr=1
        main     | 30 40 | PjitFunction(g) | cat=runtime
        main     | 32 34 | cudaLaunchKernel | corr=2
        stream 1 | 50 55 | a | corr=1 hlo__module=jit_f
        stream 1 | 60 65 | b | corr=2
    """)
    )
    names = trace.events.text("name")
    calls = device_runs.calls_of_device_work(trace).tolist()
    assert {names[row]: call for row, call in enumerate(calls) if call != -1} == {"a": 0}
    assert (device_runs.call_times(trace) // 1000).tolist() == [0, 32]


def test_work_launched_within_its_call_needs_no_link_by_order() -> None:
    """The call itself launches it, and is the first event of the file."""
    trace = link_launches(
        drawn_trace("""
        main     |  0 10 | PjitFunction(f) | cat=runtime corr=1
        stream 1 | 50 55 | a | corr=1 hlo__module=jit_f
        stream 1 | 60 65 | b | hlo__module=jit_f
    """)
    )
    assert trace["launches"]["cpu_event"].tolist() == [0]
    assert device_runs.calls_of_device_work(trace).tolist() == [-1, -1, 0]


def test_operations_outside_of_programs_have_the_stage_of_the_range_around_their_call() -> None:
    """Unless their own scope says more."""
    trace = drawn_trace("""
        main |  0 50 | evaluate | cat=annotation
        main |  2 10 | PjitFunction(add) | cat=runtime
        pool |  5  9 | plain | scope=jit(add)/add corr=1
        main | 12 20 | PjitFunction(f) | cat=runtime
        pool | 15 19 | scoped | scope=jit(f)/jvp(Net)/dot corr=2
        pool | 21 22 | no_scope | corr=2
        main | 60 70 | PjitFunction(mul) | cat=runtime
        pool | 65 69 | outside | scope=jit(mul)/mul corr=3
    """)
    stage, again = stages.stages_by_scope(trace)
    names = trace.events.text("name")
    found = {names[row]: STAGES[code] for row, code in enumerate(stage.tolist()) if code >= 0}
    assert found == {"plain": "evaluation", "scoped": "forward", "outside": "forward"}
    assert not again.any()
    assert stages.stages_by_scope(drawn_trace("main | 0 9 | forward | cat=annotation"))[0].tolist() == [-1]


@pytest.mark.parametrize(
    ("function", "line", "named"),
    [
        ("jit(f)/x", "", "f"),
        ("", "hlo__module=jit_g", "g"),
        ("", "hlo__module=pmap_h_", "h"),
        ("", "hlo__module=other", ""),
        ("", "", ""),
        ("jit(<lambda>)/x", "", "_lambda"),
    ],
)
def test_the_function_of_device_work_is_named_by_its_scope_or_module(
    function: str, line: str, named: str
) -> None:
    scope = f"scope={function}" if function else ""
    trace = link_launches(drawn_trace(f"stream 1 | 0 9 | a | n=1 {scope} {line}"))
    assert device_runs._functions(trace, np.array([0], np.int32)).tolist() == [named]


def test_runs_are_those_of_a_devices_line_of_programs() -> None:
    trace = drawn_trace("""
        stream 1 |  0 20 | jit_f(123) | cat=annotation
        stream 2 |  5 10 | a
        stream 2 | 18 25 | b
        stream 2 | 22 24 | c
        stream 1 | 30 40 | pmap_g_h(7) | cat=annotation
        stream 2 | 30 35 | d
    """)
    names = trace.events.text("name")
    work = np.flatnonzero(names.mask("a", "b", "c", "d")).astype(np.int32)
    runs = device_runs._recorded_runs(trace, work)
    assert runs is not None
    assert [*runs.functions] == ["f", "g_h"]
    assert (runs.starts // 1000).tolist() == [0, 30]
    assert dict(zip([names[row] for row in work], runs.of_work.tolist(), strict=True)) == {
        "a": 0,
        "b": 0,
        "c": 2,
        "d": 1,
    }
    others = trace.with_table(trace["tracks"].with_columns(process=Text.of(["1", "2"])))
    assert device_runs._recorded_runs(others, work) is None


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


def test_modules_of_scopes_are_added_with_those_around_them() -> None:
    found: list[Module] = []
    number: dict[tuple[str, ...], int] = {}
    assert modules._add_scope(("Net", "Dense_0"), found, number) == 1
    assert modules._add_scope((), found, number) == -1
    assert modules._add_scope(("Net", "Dense_0"), found, number) == 1
    assert [(one.path, one.name, one.kind, one.parent) for one in found] == [
        *(("Net", "Net", "Net", -1), ("Net.Dense_0", "Dense_0", "Dense", 0))
    ]
    places = ["jit(f)/jvp(Net)/Dense_0/B/x", "jit(f)/Net/x", "jit(f)/Other/x", "jit(f)/x"]
    assert [modules._innermost(number, place, 0) for place in places] == [1, 0, -1, -1]


def test_an_update_belongs_to_what_is_around_all_that_it_takes() -> None:
    """By names of arguments, else by their uses, else by gradients, else to the only model."""
    tree = [Module("Net"), Module("Net.a", parent=0), Module("Net.b", parent=0)]
    of_scope = {"sa": 1, "sb": 2}
    evidence = Evidence(
        "scopes", tree, np.zeros(0, np.int32), of_origin=lambda scope, frame: of_scope.get(scope, frame)
    )
    arguments = [["m[0]", 1, 4, "sa", -1, True], ["m[1]", 1, 4, "", 7, True]]
    owners = parameters._Owners(Trace({}).with_metadata(properties={"arguments": arguments}), evidence)

    def of(*inputs: tuple[str | None, str | None, int | None]) -> int:
        return owners.of(
            [{"argument": name, "scope": scope, "frame": frame} for name, scope, frame in inputs]
        )

    assert of(("params['a']['w']", None, None)) == 1
    assert of(("params['a']['w']", None, None), ("params['b']['w']", None, None)) == 0
    assert of(("params['a']['w']", None, None), (None, "sb", None)) == 1  # names come first
    assert of(("m[0]", None, None), (None, "sb", None)) == 1
    assert of(("m[1]", None, None), (None, "sb", None)) == 2
    assert of((None, "sa", None), (None, "sb", None)) == 0
    assert of((None, None, 2)) == 2
    assert of(("unknown", None, None)) == 0
    several = Evidence("scopes", [Module("A"), Module("B")], np.zeros(0, np.int32))
    assert parameters._Owners(Trace({}), several).of([{"argument": "x", "scope": None, "frame": None}]) == -1


def test_the_work_of_a_program_is_that_of_its_operations() -> None:
    trace = drawn_trace("""
        pool |  0 10 | a | scope=jit(f)/a
        pool |  2  5 | b | scope=jit(g)/b
        pool | 20 30 | c | scope=jit(f)/c
        pool | 40 90 | d
        pool | 95 96 | e | scope=jit(h)/transpose(jvp())/e
    """)
    assert of_calls._work(trace) == {"f": 17_000, "g": 3_000, "h": 1_000}
    assert of_calls.differentiated(trace) == {"h"}


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
