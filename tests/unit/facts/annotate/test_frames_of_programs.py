"""Frames and parameters of compiled programs, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.facts.annotate.jax import parameters
from stepscope.facts.annotate.jax.frames import frames_below_call, frames_of_events, in_optimizer, is_users
from stepscope.facts.annotate.jax.parameters import Size, owner_of, parameter_sizes, sizes_by_use
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, ORIGINS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

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


def test_thousands_of_frames_in_each_other_take_no_square() -> None:
    count = 40_000
    outer, kept = frames_below_call(with_frames([(n - 1, f"f{n}", "a.py", 1) for n in range(count)]))
    assert (outer.tolist(), kept.tolist()) == ([*range(-1, count - 1)], [*range(count)])
