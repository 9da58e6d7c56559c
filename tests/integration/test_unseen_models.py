"""Stages and modules of four models that no other test has, against ranges that are taken out.

`pytest -qs tests/integration/test_unseen_models.py` prints the table of
`benchmarks/tables/modules.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.unseen.networks import NETWORKS
from test_matching_accuracy import shares, without, without_links

from stepscope.facts.annotate import annotate
from stepscope.read import read
from stepscope.record import profile
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.trace import Trace

BY_HAND = "by hand: "
PARTS = {
    "data": ("data_loading", "other"),
    "forward": FORWARD_STAGES,
    "backward": ("backward",),
    "update": ("optimizer", "zero_grad"),
}
STAGES_RIGHT = 0.999
EXACT = {"GRU with attention": 0.95}  # what joins its attention with a word may be of either


@pytest.fixture(scope="module", params=NETWORKS)
def capture(request, tmp_path_factory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("unseen") / "run.stepscope"
    torch.manual_seed(0)
    training = NETWORKS[request.param]()
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-3)
    by_hand = torch.profiler.record_function
    with profile(training.model, path=path, warmup=1, steps=1):
        for _ in range(2):
            with by_hand(f"{BY_HAND}data"):
                batch = training.batch()
            with by_hand(f"{BY_HAND}forward"):
                loss = training.loss(*batch)
            with by_hand(f"{BY_HAND}backward"):
                loss.backward()
            with by_hand(f"{BY_HAND}update"):
                optimizer.step()
                optimizer.zero_grad()
    return request.param, path


def stages_right(recorded: Trace, found: Trace, dropped: np.ndarray) -> float:
    """The share of operators that are in the stage of the range around them."""
    names = recorded.events.text("name")
    right = np.zeros(len(recorded.events), np.bool_)
    inside = np.zeros(len(recorded.events), np.bool_)
    stage = np.zeros(len(recorded.events), np.int64) - 1
    stage[~dropped] = found.events["stage"]
    for part, stages in PARTS.items():
        ranges = names.mask(BY_HAND + part)
        rows = inherit(recorded.events["parent"], np.where(ranges, 1, -1).astype(np.int32)) > 0
        inside |= rows
        right |= rows & np.isin(stage, [STAGES.index(one) for one in stages])
    counted = inside & recorded.events.text("category").mask("cpu_op")
    return float(right[counted].mean())


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "no links"])
def test_models_that_nothing_was_tuned_for(capture, linked):
    name, path = capture
    recorded = read(path)
    truth = annotate(recorded)
    ranges = recorded.events.text("name").where(lambda name: name.startswith(("stepscope.", BY_HAND)))
    bare = without(recorded, ranges)

    found = annotate(bare if linked else without_links(bare), recorded.metadata.model)

    right = stages_right(recorded, found, ranges)
    modules = shares(truth, ranges, found, again=True)
    print(f"| {name}{'' if linked else ', no links'} | stages | | {100 * right:.2f} |")
    print(*(f"| {name}{'' if linked else ', no links'} | {share} |" for share in modules), sep="\n")
    assert right >= STAGES_RIGHT
    for share in modules[:2]:
        assert share.branch >= 0.99, str(share)
        assert share.exact >= EXACT.get(name, 0.99), str(share)
