"""Matching by a model tree against the truth of files that name their modules.

The module events are taken out, what is left is matched with the tree, and each operator's module
is compared with the true one. `pytest -qs tests/integration/test_matching_accuracy.py` prints the
table of `docs/design/modules.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matching_models import MODELS
from numpy.typing import NDArray

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.range_names import MODULE_RANGE
from stepscope.read import read
from stepscope.record import profile
from stepscope.trace.nesting import inherit, self_times
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

LEAST = {"forward": 0.97, "prefill": 0.97, "backward": 0.95}
FRAMES = (
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz",
    "pair_h100_mi300x/bert_small_h100.json.gz",
    "pair_h100_mi300x/bert_small_mi300.json.gz",
    "pair_h100_mi300x/timesformer_h100.json.gz",
    "pair_h100_mi300x/timesformer_mi300.json.gz",
    "eager_b200/rank0.json.gz",
)
SHORT = {
    "transformer": "its layers call dropout1 before dropout: nothing tells one from the other",
    "albert": "one layer runs three times: calling it again is explained worse than other modules",
    "mixtral": "its experts and their router run by function, in one run of operators",
}


@dataclass(frozen=True)
class Share:
    """Operators of one stage with a true module: how many, and the shares that matching finds."""

    stage: str
    operators: int
    exact: float
    branch: float
    exact_time: float
    branch_time: float

    def __str__(self) -> str:
        shares = (self.exact, self.branch, self.exact_time, self.branch_time)
        return f"{self.stage} | {self.operators} | " + " | ".join(f"{100 * s:.1f}" for s in shares)


# -- truth


def without(trace: Trace, dropped: NDArray[np.bool_]) -> Trace:
    """A trace as read, as if some of its events had not been recorded."""
    events, flows = trace.events, trace["flows"]
    number = np.append(np.where(dropped, -1, np.cumsum(~dropped) - 1), -1)
    around = np.append(inherit(events["parent"], np.where(dropped, -1, events["id"])), -1)
    kept = events.take(~dropped)
    parent = number[around[kept["parent"]]]
    inside = self_times(parent, kept["start_ns"], kept["duration_ns"])
    ends = {end: number[flows[end]] for end in ("source_event", "target_event")}
    kept = kept.with_columns(parent=parent, self_ns=inside)
    return trace.with_table(kept).with_table(flows.with_columns(**ends))


def without_links(trace: Trace) -> Trace:
    """A trace that ties no backward event to its forward event."""
    nothing = np.full(len(trace.events), -1)
    arrows = trace["flows"].text("kind").mask("fwdbwd")
    trace = trace.with_table(trace["flows"].take(~arrows))
    return trace.with_events(sequence=nothing, forward_thread=nothing)


def tree_of(truth: Trace) -> dict[str, Any]:
    """The model tree, with names and classes only.

    Frames do not tell in which order modules were registered; children are in that of first calls.
    """
    modules, events = truth["modules"], truth.events
    first = np.full(len(modules), np.iinfo(np.int64).max)
    inside = events["module"] >= 0
    np.minimum.at(first, events["module"][inside], events["start_ns"][inside])
    parent = modules["parent"].tolist()
    for number in reversed(range(len(parent))):
        if parent[number] >= 0:
            first[parent[number]] = min(first[parent[number]], first[number])
    nodes = [
        {"name": row["name"], "path": row["path"], "class": row["class"], "children": []}
        for row in modules.rows()
    ]
    for number in np.argsort(first, kind="stable").tolist():
        if parent[number] >= 0:
            nodes[parent[number]]["children"].append(nodes[number])
    return {"roots": [node for node, above in zip(nodes, parent, strict=True) if above < 0]}


# -- comparison


def shares(truth: Trace, dropped: NDArray[np.bool_], found: Trace, again: bool) -> list[Share]:
    """How matching did, by stage; `again` counts recomputed operators in backward too."""
    events = truth.events.take(~dropped)
    paths = {path: number for number, path in enumerate(found["modules"].text("path"))}
    numbers = [*(paths[path] for path in truth["modules"].text("path")), -1]
    true, got = np.array(numbers)[events["module"]], found.events["module"]
    above = np.append(found["modules"]["parent"], -1)
    exact = got == true
    near = exact | ((got >= 0) & ((above[got] == true) | (above[true] == got)))
    counted = events.text("category").mask("cpu_op") & (true >= 0) & (events["step"] >= 0)
    counted &= again | (events["recompute"] == 0)
    result = []
    for stage in LEAST:
        rows = counted & (events["stage"] == STAGES.index(stage))
        if rows.any():
            time = events["self_ns"][rows]
            columns = exact[rows], near[rows]
            means = [column.mean() for column in columns]
            timed = [np.average(column, weights=time) for column in columns]
            result.append(Share(stage, int(rows.sum()), *means, *timed))
    return result


def check(name: str, found: list[Share]) -> None:
    for share in found:
        print(f"| {name} | {share} |")
    assert [share.stage for share in found][:1] in (["forward"], ["prefill"])
    assert all(share.branch >= LEAST[share.stage] for share in found), [str(one) for one in found]


# -- traces with nn.Module frames


@pytest.mark.parametrize("name", FRAMES)
def test_traces_with_module_frames(traces, name):
    recorded = read(traces / name)
    truth = annotate(recorded)
    frames = recorded.events.text("category").mask("python")

    found = annotate(without(recorded, frames), tree_of(truth))

    assert set(truth["modules"].text("evidence")) == {"nn_module"}
    assert set(found["modules"].text("evidence")) == {"matched"}
    check(name.removesuffix(".json.gz"), shares(truth, frames, found, again=True))


def test_a_trace_whose_backward_nothing_links(traces):
    """Recomputed operators are left out: without sequence numbers nothing tells that they are."""
    recorded = read(traces / FRAMES[0])
    truth = annotate(recorded)
    frames = recorded.events.text("category").mask("python")

    found = annotate(without_links(without(recorded, frames)), tree_of(truth))

    check("resnet_ddp_mi300x, no links", shares(truth, frames, found, again=False))


# -- captures, whose trees have children in the order of registration


@pytest.fixture(scope="module", params=MODELS)
def capture(request, tmp_path_factory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp(request.param) / "run.stepscope"
    torch.manual_seed(0)
    model, loss = MODELS[request.param]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(model.train(), path=path, warmup=1, steps=2):
        for _ in range(3):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
    return request.param, path


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "no links"])
def test_captures(request, capture, linked):
    name, path = capture
    if name in SHORT:
        request.applymarker(pytest.mark.xfail(reason=SHORT[name], strict=True))
    recorded = read(path)
    truth = annotate(recorded)
    ranges = recorded.events.text("name").where(lambda name: name.startswith(MODULE_RANGE))
    bare = without(recorded, ranges)

    found = annotate(bare if linked else without_links(bare), recorded.metadata.model)

    assert set(truth["modules"].text("evidence")) == {"ranges"}
    assert set(found["modules"].text("evidence")) == {"matched"}
    check(name if linked else f"{name}, no links", shares(truth, ranges, found, again=True))
