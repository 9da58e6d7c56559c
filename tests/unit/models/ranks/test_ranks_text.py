"""What `stepscope ranks` prints fits the terminal."""

from __future__ import annotations

import io
import re
from itertools import product
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from stepscope.models.ranks.hangs import in_runs
from stepscope.models.ranks.job import JobReport, RankRow
from stepscope.models.ranks.process_groups import GroupRow
from stepscope.models.ranks.ranks_text import print_job
from stepscope.models.ranks.replay_whatifs import Share, Slowdown
from stepscope.models.ranks.sketch import UNSTAGED
from stepscope.models.ranks.stragglers import Straggler, _also, ranks_in_words
from stepscope.trace.schema import STAGES as ALL_STAGES

STAGES = ("data_loading", "transfer", "forward", "loss", "backward", "optimizer", "other", "host")
GROUP = GroupRow(
    kind="reducescatter",
    axis="pipeline",
    groups=128,
    members=1024,
    scope="between nodes",
    calls=12.0,
    bytes=1,
    transfer_ms=123.4,
    algorithm_gbs=1.0,
    bus_gbs=123.0,
    skew_ms=12.3,
    last_rank=1023,
    last_share=1.0,
    last_place="backward: layer: kernel",
)
SLOW = Straggler((3,), "", "forward", None, 25.0, 0.25, "slower device (all kernels alike)", cost_ms=25.0)
WHEN: list[dict[str, Any]] = [
    {},
    {"steps": (20, 40)},
    {"steps": (3, 43), "count": 5, "period": 10},
    {"steps": (3, 45), "count": 7},
    {"steps": (3, 45), "count": 7, "in_turn": True, "ranks": tuple(range(60))},
]
REPORT = JobReport(
    ranks=1024,
    steps=48,
    step_ms=250.0,
    work_ms=200.0,
    slowest_ms=225.0,
    rows=tuple(
        RankRow(
            rank,
            f"node-{rank // 8}",
            "V100",
            {name: 12.3 + row for row, name in enumerate(STAGES)},
            23.4,
            None,
        )
        for rank in range(1020, 1024)
    ),
    stragglers=(SLOW,),
    groups=(GROUP,),
    slowdown=Slowdown(250.0, 200.0, (Share("operation", "host", 240.0, 0.8, 0.8),)),
)


def printed(width: int, report: JobReport = REPORT) -> str:
    console = Console(width=width, file=io.StringIO())
    print_job(console, report, [])
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_column_is_cut(width: int) -> None:
    text = printed(width)
    assert "…" not in text
    tables = text[text.index("Ranks that work longest") :].splitlines()
    assert max(map(len, tables)) <= width
    assert "rank 1023 (100%)" in text
    assert "reducescatter" in text


def test_columns_without_room_are_named() -> None:
    assert "no room for: groups, nodes, per step, after" in printed(80)
    assert "no room for" not in printed(160)


def test_what_rare_steps_cost_is_a_share_of_the_mean_step() -> None:
    """The usual step is shorter than what some steps cost the job on average."""
    slow = msgspec.structs.replace(SLOW, cost_ms=300.0)
    report = msgspec.structs.replace(REPORT, stragglers=(slow,), replayed_ms=500.0)
    assert "costs the job 300.0 ms per step, 60% of the mean step, 500.0 ms" in printed(100, report)


def test_each_finding_is_printed_once_and_the_longest_stages_stay() -> None:
    text = printed(80)
    assert text.count(SLOW.sentence) == 1
    assert "costs the job 25.00 ms per step, 10% of the step" in text
    assert "Imbalance makes the step 1.25 times as long" in text
    assert "One part alone causes: host-bound time 80%" in text
    (head,) = (line for line in text.splitlines() if "own work   waiting" in line)
    assert "host-bound" in head
    assert "loading" not in head


@pytest.mark.parametrize(
    ("device", "shares", "first"),
    [
        ("", (0.99, 0.42, 0.8, None), "! rank 1021 got 42% of a core: other ranks or programs used it"),
        ("", (0.99, 0.96, 0.95, None), "▶ Rank 3"),
        ("V100", (0.99, 0.42, 0.8, None), "▶ Rank 3"),  # the device computes
    ],
)
def test_a_job_on_a_busy_machine_says_so_first(
    device: str, shares: tuple[float | None, ...], first: str
) -> None:
    rows = (replace(r, device=device, core_share=s) for r, s in zip(REPORT.rows, shares, strict=True))
    assert printed(120, replace(REPORT, rows=tuple(rows))).startswith(first)


def test_a_job_without_findings_says_so() -> None:
    text = printed(80, replace(REPORT, stragglers=()))
    assert "▶ No rank is slower than the others beyond noise." in text


@pytest.mark.parametrize(
    "ranks", [(3,), (8, 9, 10), (3, 17, 40, 55, 71), tuple(range(16)), tuple(range(7, 1024, 8))], ids=len
)
@pytest.mark.parametrize("node", ["", "node-1", "node-1 and node-2", "a1, a2, a3, a4 and 60 more"])
def test_the_title_has_at_most_twelve_words_and_all_names_stand_in_the_sentence(
    ranks: tuple[int, ...], node: str
) -> None:
    """The page has room for one title: who, where, how much and when; why comes after it."""
    for when, stage, excess in product(WHEN, {*STAGES, *ALL_STAGES, UNSTAGED}, (0.25, float("inf"))):
        slow = replace(SLOW, ranks=ranks, stage=stage, node=node, excess=excess)
        slow = replace(slow, **when)
        title, *why = re.split(r"(?<=[.]) (?=[A-Z])", slow.sentence)
        assert len(title.split()) <= 12, title
        assert "slower device (all kernels alike)" in why[0].lower()
        assert f"{len(slow.ranks)} ranks" in title or in_runs(slow.ranks).capitalize() in title
        assert slow.in_turn or ranks_in_words(slow.ranks, node) in slow.sentence


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"ranks": (3, 17)}, "Ranks 3, 17: forward 25% longer in every step. Slower device"),
        (
            {"ranks": (3, 17, 40, 55, 71)},
            "Ranks 3, 17, 40, 55, 71: forward 25% longer in every step. Slower device",
        ),
        (
            {"ranks": (3, 17, 40, 55, 71), "steps": (3, 43), "count": 5, "period": 10},
            "5 ranks: forward 25% longer in every 10th step (3–43). Ranks 3, 17, 40, 55, 71: slower device",
        ),
        (
            {"ranks": (8, 9), "node": "n1", "stage": "host", "steps": (3, 45), "count": 7, "excess": 99.0},
            "Ranks 8-9: host-bound time 25 ms longer in 7 of steps 3–45. Ranks 8-9 (n1): slower device",
        ),
    ],
)
def test_a_title_without_room_for_all_names_is_followed_by_them(facts: dict[str, Any], sentence: str) -> None:
    assert replace(SLOW, **facts).sentence.startswith(f"{sentence} (all kernels alike)")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"loss": 1.5}, "loss 50% longer"),
        ({"loss": 1.5, "forward": 1.5}, "loss and forward 50% longer"),
        ({"loss": 1.5, "forward": 1.5, "optimizer": 1.5}, "loss, forward and optimizer 50% longer"),
        (
            {"loss": 1.5, "forward": 1.2, "optimizer": 1.5},
            "loss and optimizer 50% longer, forward 20% longer",
        ),
    ],
)
def test_stages_that_take_longer_alike_are_one_list(others: dict[str, float], words: str) -> None:
    stages = {"backward": 9.0, **dict.fromkeys(others, 3.0)}
    ratios = {name: times - 1 for name, times in {"backward": 1.5, **others}.items()}
    assert _also(stages, ratios, dict.fromkeys(stages, "slower device")) == words
