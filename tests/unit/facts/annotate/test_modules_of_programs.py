"""Modules and owners of what compiled programs take, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
from test_frames_of_programs import with_frames

from stepscope.facts.annotate.jax import modules, parameters
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


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
