"""Python of the training loop between its operators: where it recurs, its name, and its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from drawn_findings import repeated

from stepscope.analyze import RuleContext
from stepscope.analyze.python_stalls import (
    LOOP,
    StalledRanges,
    find_python_stalls,
    has_names,
    is_whole_step,
    most_of_name,
    name_of_stall,
    place_at,
    place_of_stall,
    python_of_the_loop,
    sampled_line,
    share,
    stalled_ranges,
)
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import StagePlace
from stepscope.testing import drawn_trace
from stepscope.trace.intervals import Intervals


def context(text: str, **metadata: Any) -> RuleContext:
    return RuleContext(annotate(drawn_trace(text, **metadata)))


def spans(*pairs: tuple[float, float]) -> Intervals:
    bounds = np.round(np.array(pairs).reshape(-1, 2) * 1000).astype(np.int64)
    return Intervals(bounds[:, 0], bounds[:, 1])


CALLS = """
    main   |  100  200 | aten::mm
    main   |  110  200 | aten::empty
    worker | 1500 1600 | aten::copy_
    main   | 3000 3100 | aten::relu
    main   | 3000 3050 | aten::add
    main   | 8000 8100 | aten::sum
"""


@pytest.mark.parametrize(
    ("gaps", "longest_ms", "before", "after", "kept"),
    [
        ([(200, 3000)], 2.8, "aten::mm", "aten::relu", 2),
        ([(200, 1200)], 1.0, "aten::mm", "aten::relu", 2),
        ([(200, 1199.999)], None, "", "", 0),
        ([(3100, 8000), (200, 3000)], 4.9, "aten::relu", "aten::sum", 4),
        ([(8100, 10_000)], 1.9, "aten::sum", "", 2),
        ([(0, 100)], None, "", "", 0),
        ([], None, "", "", 0),
    ],
)
def test_stalls_at_the_same_place_of_every_step(
    gaps: list[tuple[float, float]], longest_ms: float | None, before: str, after: str, kept: int
) -> None:
    found = context(repeated(CALLS, 10_000))
    every = [(a + at, b + at) for at in (0, 10_000) for a, b in gaps]
    stalls = find_python_stalls(found, spans(*sorted(every)))
    if longest_ms is None:
        assert stalls is None
        return
    assert stalls is not None
    names = [found.search.name(row) if row >= 0 else "" for row in (stalls.before, stalls.after)]
    assert (stalls.longest_ms, names, len(stalls.spans)) == (longest_ms, [before, after], kept)


@pytest.mark.parametrize(("gap_us", "layers", "kept"), [(210, 5, 10), (190, 6, 0), (210, 4, 0)])
def test_short_stalls_in_each_layer_count_as_one(gap_us: int, layers: int, kept: int) -> None:
    """As a mask that each layer makes in Python: 1 ms of gaps longer than between a model's operators."""
    length = 100 + gap_us
    text = "\n".join(f"main | {at * length} {at * length + 100} | aten::add" for at in range(layers + 1))
    gaps = [
        (step + at * length + 100, step + (at + 1) * length) for step in (0, 5000) for at in range(layers)
    ]
    stalls = find_python_stalls(context(repeated(text, 5000)), spans(*gaps))
    assert (len(stalls.spans) if stalls else 0) == kept


def test_a_gap_over_two_steps_is_of_both_and_one_step_alone_shows_nothing() -> None:
    found = context(repeated(CALLS, 10_000))
    both = find_python_stalls(found, spans((8100, 10_100), (18_100, 20_000)))
    assert both is not None
    assert both.spans.starts.tolist() == [8_100_000, 18_100_000]
    assert both.spans.ends.tolist() == [10_000_000, 20_000_000]
    assert find_python_stalls(found, spans((200, 3000))) is None
    begins = find_python_stalls(found, spans((9000, 11_500), (19_000, 20_000), (0, 1500)))
    assert begins is not None
    assert begins.longest_ms == 1.5
    assert found.search.name(begins.after) == "aten::relu"


def test_shares_are_the_median_over_the_steps() -> None:
    found = context(repeated(CALLS, 10_000, times=3))
    assert share(found, spans((0, 1000), (10_000, 14_000), (20_000, 22_000))) == pytest.approx(0.2)
    assert share(found, spans((9000, 11_000))) == pytest.approx(0.1)


def test_an_update_of_pytorch_and_a_checkpoint_are_no_python_of_the_loop() -> None:
    text = """
        main | 100 200 | aten::mm
        main | 3000 6000 | Optimizer.step#{name}.step
        main | 3100 3200 | aten::add_
        main | 6500 8000 | stepscope.checkpointing: save (train.py:3)
    """
    for name, expected_us in (("Adam", 100 + 2800 + 500 + 2000), ("Mine", 100 + 2800 + 500 + 2000 + 2900)):
        gaps = python_of_the_loop(context(repeated(text.format(name=name), 10_000)))
        assert gaps.total() / 2000 == pytest.approx(expected_us)


FRAMES = """
    main | 50 9900 | train.py(3): main
    main | 100 200 | aten::mm
    main | 1000 5000 | log.py(7): write
    main | 2000 2500 | json/encoder.py(9): encode
    main | 6000 6400 | log.py(7): write
    main | 9000 9100 | aten::relu
"""


def names_of(found: RuleContext, stalled: StalledRanges) -> dict[str, int]:
    names = [found.search.name(row) for row in stalled.rows.tolist()]
    return {name: int(stalled.spent[[one == name for one in names]].sum()) // 1000 for name in names}


def test_the_ranges_in_which_the_loop_stalls() -> None:
    found = context(repeated(FRAMES, 10_000))
    gaps = spans((200, 9000), (10_200, 19_000))
    stalled = stalled_ranges(found, gaps)
    assert names_of(found, stalled) == {
        "train.py(3): main": 2 * (8800 - 4000 - 400),
        "log.py(7): write": 2 * (3500 + 400),
        "json/encoder.py(9): encode": 2 * 500,
    }
    assert stalled.outside == 0
    assert name_of_stall(found, stalled) == "train.py:3 in main"
    inner = stalled_ranges(found, spans((1000, 5000), (11_000, 15_000)))
    assert names_of(found, inner) == {"log.py(7): write": 7000, "json/encoder.py(9): encode": 1000}
    name = name_of_stall(found, inner)
    assert name == "log.py:7 in write"
    assert place_of_stall(found, inner, name) == "Mostly in log.py:7 in write"
    few = stalled_ranges(found, spans((1000, 2025), (2400, 2500)))
    assert names_of(found, few) == {"log.py(7): write": 1000, "json/encoder.py(9): encode": 125}
    fewer = stalled_ranges(found, spans((1000, 2050), (2475, 2499)))
    assert names_of(found, fewer) == {"log.py(7): write": 1000}  # others only surround it
    called = stalled_ranges(found, spans((2000, 2500)))
    assert name_of_stall(found, called) == "json/encoder.py(9): encode, called by log.py:7 in write"
    nowhere = stalled_ranges(found, spans((9950, 10_050)))
    assert (nowhere.outside, nowhere.spent.sum()) == (0, 100_000)
    assert name_of_stall(found, nowhere) == LOOP
    assert has_names(found, LOOP)
    assert not has_names(context(repeated(CALLS)), LOOP)
    assert has_names(context(repeated(CALLS)), "log")


def test_a_path_may_have_spaces() -> None:
    found = context(repeated(FRAMES.replace("log.py(7)", "my x/log.py(7)"), 10_000))
    stalled = stalled_ranges(found, spans((1000, 2000), (2500, 5000)))
    assert name_of_stall(found, stalled) == "my x/log.py:7 in write"


@pytest.mark.parametrize(
    ("spent", "outside", "words"),
    [
        ([60, 40], 0, "Mostly in x"),
        ([50, 50], 0, "Mostly in x"),
        ([50, 50], 1, "50% of it in x"),
        ([30, 30], 40, "40% of it in x"),
        ([10, 10], 80, "Mostly in x"),
        ([0, 0], 10, "Mostly in x"),
    ],
)
def test_the_place_of_a_stall_in_words(spent: list[int], outside: int, words: str) -> None:
    found = context(repeated(FRAMES, 10_000))
    rows = found.search.find("main|encode")[:2]
    us = max(sum(spent) + outside, 1)
    stalled = StalledRanges(spans((0, us)), rows, np.array(spent) * 1000, outside * 1000)
    assert place_of_stall(found, stalled, "x") == words


def test_its_share_is_of_all_of_the_stall() -> None:
    """Of 200 us two main places have 100; the others are not listed."""
    found = context(repeated(FRAMES, 10_000))
    rows = found.search.find("main|encode")[:2]
    stalled = StalledRanges(spans((0, 200)), rows, np.array([60_000, 40_000]), 0)
    assert place_of_stall(found, stalled, "x") == "30% of it in x"


def test_names_are_one_without_their_prefix() -> None:
    found = context(repeated("main | 10 20 | a\nmain | 30 40 | ## a ##\nmain | 50 60 | b"))
    rows = found.search.find("^(a|## a ##|b)$")[:3]
    chosen, most = most_of_name(found, rows, np.array([3, 4, 6]))
    assert (chosen.tolist(), most) == ([True, True, False], 7)


@pytest.mark.parametrize(("end", "is_whole"), [(910, True), (909.9, False)])
def test_a_range_of_most_of_the_step_that_launches_shows_no_place(end: float, is_whole: bool) -> None:
    text = f"""
        main     | 10 {end} | fit | cat=annotation
        main     | 20 30 | cudaLaunchKernel | corr=1
        stream 7 | 40 900 | gemm | corr=1
        worker   | 5 995 | load | cat=annotation
    """
    found = context(repeated(text))
    rows = found.search.find("fit|load|ProfilerStep|cudaLaunch")
    names = [found.search.name(row) for row in rows.tolist()]
    whole = {name for name, one in zip(names, is_whole_step(found, rows).tolist(), strict=True) if one}
    assert whole == {"ProfilerStep#0", "ProfilerStep#1", *(["fit"] if is_whole else [])}


PLACES = [
    StagePlace("other", "log", "/me/train.py", 7, 2.0, 0.2, 0.0, called=("main (/me/train.py:9)",)),
    StagePlace("other", "<module>", "/me/train.py", 8, 3.0, 0.3, 2.0),
    StagePlace("data_loading", "load", "/me/data.py", 3, 9.0, 0.9, 0.0),
]


@pytest.mark.parametrize(
    ("places", "stage", "spent_ms", "line"),
    [
        (PLACES, "other", 6.0, "me/train.py:8"),
        (PLACES, "other", 6.001, ""),
        (PLACES[:1], "other", 4.0, "me/train.py:7 in log, called in line 9"),
        (PLACES, "data_loading", 1.0, "me/data.py:3 in load"),
        (PLACES, "forward", 0.0, ""),
    ],
)
def test_the_line_with_half_of_the_time_of_a_stage(
    places: list[StagePlace], stage: str, spent_ms: float, line: str
) -> None:
    known = SimpleNamespace(measures=SimpleNamespace(summary=SimpleNamespace(places=places)))
    assert sampled_line(cast("RuleContext", known), spent_ms, stage) == line
    if stage == "other":
        assert sampled_line(cast("RuleContext", known), spent_ms) == line


def test_the_evidence_of_a_sampled_function() -> None:
    sampled, module = place_at(PLACES[0]), place_at(PLACES[1])
    assert (sampled.name, sampled.stage, sampled.module, sampled.file, sampled.line, sampled.function) == (
        *("log", "other", "", "/me/train.py", 7),
        "log",
    )
    assert (sampled.count, sampled.ms, sampled.called) == (1.0, 2.0, ("main (/me/train.py:9)",))
    assert (module.count, module.called) == (2.0, ())
