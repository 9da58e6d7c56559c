"""Modules of operators inside models that TorchScript made, which Python does not call."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.facts.annotate.modules.modules import scripted_operators
from stepscope.testing import drawn_trace
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace


class Script:
    """Draws steps of a random scripted model as torch notes them, with the module of each."""

    def __init__(self, seed: int, *, moved: bool) -> None:
        self.random, self.moved, self.now = random.Random(seed), moved, 0
        self.lines: list[list[str]] = []
        self.notes: list[str] = []  # of all events but the nodes of gradients
        self.noted: list[str | None] = []
        self.truth: list[str] = []
        self.calls: dict[str, int] = {}
        self.tree = self._tree("", "", 3)

    def _tree(self, name: str, path: str, depth: int) -> dict[str, Any]:
        children = [
            self._tree(str(place), f"{path}.{place}" if path else str(place), depth - 1)
            for place in range(self.random.randint(1, 3) if depth else 0)
        ]
        return {"name": name or "net", "path": path, "class": "Part", "scripted": True, "children": children}

    def step(self, number: int) -> None:
        begun = self._event("ProfilerStep#", "", 2)
        self._event("aten::randn", "")
        model = self._event("stepscope.module:", "", 2)
        self._event("forward", "TOP(Net)::forward.", 2)
        self._run(self.tree, "TOP()::forward.", number)
        self._close(model - 1, model)
        self._event("aten::mse_loss", "")
        for _ in range(self.random.randint(1, 4)):
            self._event("autograd::engine::evaluate_function: NetBackward", "", 3)
            self._event("NetBackward", None)
            self._event("aten::mm", "")
            self._close(-3, -2)
        self._close(begun - 1, begun)
        self.lines[begun - 1][2] += str(number)

    def _run(self, node: dict[str, Any], note: str, number: int) -> None:
        self.calls[node["path"]] = self.calls.get(node["path"], 0) + 1
        for child in node["children"]:
            self._operator(node, note)
            self._run(child, f"{note}{child['name']}(Part)::forward.", number)
        if not node["children"]:
            self._operator(node, note)

    def _operator(self, node: dict[str, Any], note: str) -> None:
        self._event(f"aten::op_{len(self.lines)}", note)
        self.truth.append(f"{self.lines[-1][2]} in {node['path']}")

    def _event(self, name: str, note: str | None, length: int = 1) -> int:
        self.lines.append([str(self.now), str(self.now + length), name])
        self.now += 1
        self.noted.append(note)
        return len(self.lines)

    def _close(self, *places: int) -> None:
        """Events around others end now."""
        for place in places:
            self.lines[place][1] = str(self.now)

    def trace(self) -> Trace:
        notes = [note for note in self.noted if note is not None] if self.moved else self.noted
        drawn = [
            f"main | {start} {end} | {name}" + (f" | Module_Hierarchy={note}" if note else "")
            for (start, end, name), note in zip(self.lines, [*notes, *[""] * 100], strict=False)
        ]
        return annotate(drawn_trace("\n".join(drawn), model={"roots": [self.tree]}))


def modules_of(trace: Trace) -> list[str]:
    paths, names = trace["modules"].text("path"), trace.events.text("name")
    return [
        f"{names[row]} in {paths[module]}"
        for row, module in enumerate(trace.events["module"].tolist())
        if (names[row] or "").startswith("aten::op_")
    ]


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_each_operator_has_its_module(seed: int, moved: bool) -> None:
    """As torch notes them, one operator late for each gradient before, and as it should."""
    script = Script(seed, moved=moved)
    for number in range(3):
        script.step(number)
    trace = script.trace()
    assert modules_of(trace) == script.truth
    table = trace["modules"]
    assert dict(zip(table.text("path"), table["calls"].tolist(), strict=True)) == script.calls


def test_the_gradient_of_a_scripted_graph_is_of_its_model() -> None:
    """Its node takes the number before those that the graph's operators read."""
    trace = annotate(
        drawn_trace("""
        main |  0 100 | ProfilerStep#0
        main |  1   3 | aten::randn | seq=6
        main |  5  30 | stepscope.module: net
        main |  6  29 | <forward op>
        main |  7  20 | aten::linear | seq=8
        main | 20  28 | aten::relu | seq=8
    main | 40  60 | autograd::engine::evaluate_function: DifferentiableGraphBackward | seq=7 fwd=1
        main | 41  59 | DifferentiableGraphBackward | seq=7 fwd=1
        main | 42  58 | aten::mm
    """)
    )
    row = next(iter(trace["modules"].rows()))
    assert (row["forward_cpu_ns"], row["backward_cpu_ns"]) == (25000, 20000)


@pytest.mark.parametrize("scripted", [True, False])
def test_operators_of_a_scripted_model_but_not_its_calls_are_of_its_parts(scripted: bool) -> None:
    trace = drawn_trace("""
        main |  0  40 | net
        main |  2   8 | aten::add | Module_Hierarchy=TOP(Net)::forward.
        main | 10  18 | aten::mm  | Module_Hierarchy=TOP(Net)::forward.a(Part)::forward.
        main | 20  28 | aten::mm  | Module_Hierarchy=TOP(Net)::forward.a(Part)::forward.
        main | 30  38 | aten::sum | Module_Hierarchy=TOP(Net)::forward.
        main | 50  58 | aten::out
        a    | 10  20 | kernel
    """)
    stage = np.full(len(trace.events), STAGES.index("forward"), np.int32)
    stage[list(trace.events.text("name")).index("aten::sum")] = STAGES.index("optimizer")
    trace = trace.with_events(stage=Text(stage, STAGES))
    modules = [Module("", "net", facts={"scripted": scripted}), Module("a", "a", parent=0)]
    call_of = np.where(trace.events.text("name").mask("net"), 0, -1).astype(np.int32)
    found = scripted_operators(trace, Evidence("ranges", modules, call_of))
    if not scripted:
        assert found is None
        return
    assert found
    by_name = dict(zip(trace.events.text("name"), found.module.tolist(), strict=True))
    assert by_name == {
        **{"net": -1, "aten::add": 0, "aten::mm": 1, "aten::sum": -1, "aten::out": -1, "kernel": -1}
    }
    assert found.calls.tolist() == [0, 1]
