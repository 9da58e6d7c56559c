"""The runs of stages: parts that a recorder timed, changes of stage, pauses, and what bounds each run."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from facts import us
from test_stage_gaps import one_by_one

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.stages import stage_runs
from stepscope.facts.annotate.stages.stage_runs import TimedParts, timed_parts, with_parts_moved
from stepscope.testing import drawn_trace
from stepscope.trace.schema import BOUNDS, STAGES, STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata

NONE, OTHER = -1, STAGES.index("other")
PARTS = ["data_loading", "forward", "loss", "zero_grad", "backward", "optimizer", "rest", "recorder"]
Piece = tuple[str, "str | None", int]


def codes(*stages: str | None) -> list[int]:
    return [NONE if stage is None else STAGES.index(stage) for stage in stages]


def decoded(found: Any) -> list[str | None]:
    return [None if code < 0 else STAGES[code] for code in found.tolist()]


# -- parts that the recorder timed

CHANGES = {
    "parts": ["data_loading", "forward", "rest", "recorder"],
    "after_ns": [0, 5, 3, 9],
    "part": [0, 1, 2, 3],
    "since_unix_ns": 1000,
}


def metadata(**changes: Any) -> Metadata:
    """Of a trace whose zero is at 900 ns of the clock."""
    recorded = {"elapsed_ns": 7, "changes": CHANGES | changes}
    return Metadata(origin_ns=900, capture={"outcome": "done", "recorded_steps": recorded})


def test_parts_are_on_the_clock_of_the_trace_and_in_order() -> None:
    parts = timed_parts(metadata())
    assert parts is not None
    assert (parts.names, parts.part.tolist()) == (CHANGES["parts"], [0, 1, 2, 3])
    assert parts.times.tolist() == [100, 105, 105, 109]
    moments = np.array([99, 100, 104, 105, 108, 109, 200])
    assert parts.at(moments).tolist() == [-1, 0, 0, 2, 2, 3, 3]
    assert parts.own_work_at(moments).tolist() == [False] * 5 + [True] * 2
    assert not TimedParts(["forward"], np.array([100]), np.array([0])).own_work_at(moments).any()


@pytest.mark.parametrize(
    "capture",
    [
        {},
        {"recorded_steps": None},
        {"recorded_steps": {}},
        {"recorded_steps": {"changes": {}}},
        *(
            {"recorded_steps": {"changes": CHANGES | changes}}
            for changes in ({"after_ns": [], "part": []}, {"part": [0, 1, 2]}, {"part": [0, 1, 2, 4]})
        ),
    ],
)
def test_without_usable_notes_there_are_no_parts(capture: dict[str, Any]) -> None:
    assert timed_parts(Metadata(capture=capture)) is None
    moved = with_parts_moved(Metadata(capture=capture), lambda times: times + 1)
    assert moved == capture
    assert moved is not capture


def test_parts_are_moved_to_another_clock() -> None:
    recorded = metadata()
    moved = with_parts_moved(recorded, lambda times: 2 * times + 7)
    changes = CHANGES | {"since_unix_ns": 1107, "after_ns": [0, 10, 10, 18]}
    assert moved == {"outcome": "done", "recorded_steps": {"elapsed_ns": 7, "changes": changes}}
    assert recorded == metadata()
    again = timed_parts(Metadata(origin_ns=900, capture=moved))
    assert again is not None
    assert again.times.tolist() == [207, 217, 217, 225]


def filled(*pieces: Piece) -> list[str | None]:
    """The stages of pieces, each with its part, its stage so far and its length in ns."""
    part, stage, length = zip(*pieces, strict=True)
    moments = np.cumsum([0, *length[:-1]])
    parts = TimedParts(PARTS, moments, np.array([PARTS.index(name) for name in part]))
    found = stage_runs._with_gaps_filled(moments, np.array(length), np.array(codes(*stage)), parts)
    return decoded(found)


@pytest.mark.parametrize("name", ["data_loading", "forward", "zero_grad", "backward", "optimizer"])
def test_gaps_in_a_call_are_of_its_stage(name: str) -> None:
    assert filled((name, None, 10**9), (name, "evaluation", 5), (name, None, 1)) == [name, "evaluation", name]


@pytest.mark.parametrize(
    ("part", "length", "stage"),
    [("loss", 50_000, "loss"), ("loss", 50_001, None), ("rest", 50_000, None), ("recorder", 5, None)],
)
def test_only_short_python_is_of_a_loss(part: str, length: int, stage: str | None) -> None:
    assert filled(("rest", "other", 5), (part, None, length), ("rest", "other", 5))[1] == stage


@pytest.mark.parametrize("length", [50_000, 50_001])
@pytest.mark.parametrize(
    ("before", "after", "is_between"),
    [
        *(("forward", after, True) for after in ("loss", "zero_grad", "backward", "optimizer")),
        *((before, "backward", True) for before in ("loss", "zero_grad", "backward")),
        *((before, "backward", False) for before in ("data_loading", "optimizer", "other", None)),
        *(("forward", after, False) for after in ("forward", "data_loading", "other", None)),
    ],
)
def test_short_python_between_two_calls_is_of_the_second(
    before: str | None, after: str | None, is_between: bool, length: int
) -> None:
    found = filled(
        ("rest", before, 99_999), ("rest", None, length), ("rest", after, 99_999), ("rest", None, 9)
    )
    assert found[1] == (after if is_between and length <= 50_000 else None)
    assert found[3] is None  # what follows is not known


def test_the_edges_of_a_recording_are_not_next_to_each_other() -> None:
    pieces: list[Piece] = [("rest", None, 9), ("backward", "backward", 9), ("forward", "forward", 9)]
    assert filled(*pieces) == [None, "backward", "forward"]
    assert filled(pieces[1], pieces[2], pieces[0]) == ["backward", "forward", None]


@pytest.mark.parametrize(
    ("gap", "clipping", "part", "stage"),
    [
        (200_000, 1_000, "rest", "optimizer"),
        (200_001, 1_000, "rest", None),
        (300_000, 300_000, "rest", "optimizer"),
        (300_001, 300_000, "rest", None),
        (200_000, 1_000, "optimizer", None),  # no clipping: the update itself follows
        (50_000, 1_000, "optimizer", "optimizer"),
    ],
)
def test_python_before_clipping_is_of_the_optimizer(
    gap: int, clipping: int, part: str, stage: str | None
) -> None:
    """Up to 0.2 ms, or as long as the rest of this part, which clips, goes on."""
    pieces: list[Piece] = [("backward", "backward", 9), ("rest", None, gap), (part, "optimizer", clipping)]
    found = filled(*pieces, ("optimizer", "optimizer", 9), ("rest", "other", 10**6))
    assert found[1] == stage


def test_the_recorders_own_work_is_no_gap() -> None:
    moments = np.array([0, 100, 90_000, 90_100])
    parts = TimedParts(
        PARTS, moments, np.array([PARTS.index(name) for name in ("forward", "recorder", "rest", "backward")])
    )
    stage = np.array(codes("forward", None, None, "backward"))
    assert decoded(stage_runs._with_parts(moments, stage, parts)) == [
        "forward",
        "forward",
        "backward",
        "backward",
    ]
    parts = parts._replace(part=parts.part[[1, 3, 3, 1]])
    stage = np.array(codes(None, "backward", None, "other"))
    assert decoded(stage_runs._with_parts(moments, stage, parts)) == [
        None,
        "backward",
        "backward",
        "backward",
    ]


def test_parts_of_a_capture_close_its_gaps() -> None:
    """Without them what the loop does before the first operator of backward is another stage."""
    text = """
        main     |   0 1000 | ProfilerStep#1
        main     |   0  300 | aten::linear | seq=1
        autograd | 500  800 | AddmmBackward0 | seq=1 fwd=1
        main     | 900 1000 | Optimizer.step#SGD.step
    """
    changes = {"parts": PARTS, "after_ns": [0, 310_000, 850_000], "part": [1, 4, 5], "since_unix_ns": 0}
    drawn = drawn_trace(text)
    timed = annotate(drawn.with_metadata(capture={"recorded_steps": {"changes": changes}}))
    columns = ("stages", "stage", "start_ns", "end_ns")
    assert us(annotate(drawn), *columns) == [
        *(("forward", 0, 300), ("other", 300, 500), ("backward", 500, 800), ("other", 800, 900)),
        ("optimizer", 900, 1000),
    ]
    assert us(timed, *columns) == [("forward", 0, 310), ("backward", 310, 850), ("optimizer", 850, 1000)]


# -- changes of stage, pauses and gaps


def test_at_one_moment_ends_come_before_starts_and_outer_starts_first() -> None:
    trace = drawn_trace("""
        main  |  0 10 | forward
        main  | 10 20 | backward
        main  | 10 15 | optimizer
        main  | 15 20 | loss
        main  | 16 18 | none
        other |  0 30 | transfer
    """)
    own = Text.of(name if name in STAGES else None for name in trace.events.text("name"))
    trace = trace.with_events(stage=own)
    times, stages = stage_runs._changes(trace, trace.events["track"] == 0)
    assert (times // 1000).tolist() == [0, 10, 10, 10, 15, 15, 20, 20]
    assert decoded(stages) == [
        *("forward", None, "backward", "optimizer", "backward", "loss", "backward", None)
    ]


@pytest.mark.parametrize(
    ("stages", "kinds", "found"),
    [
        # f and b are stages of a program that are known, o is other, - is neither a call nor a wait.
        ("o.f.bo", "-wwww-", "offfbo"),
        ("o.f.bo", "-cccc-", "o.f.bo"),
        ("o.f.fo", "-cccc-", "o.fffo"),
        ("f.o.b", "ww-ww", "ffobb"),
        ("f.o.o", "ww-w-", "ffo.o"),
        ("b.of.o", "-w-ww-", "b.offo"),
        ("f..", "wcc", "f.."),
        ("...", "www", "..."),
        ("of", "ww", "ff"),
        ("", "", ""),
    ],
)
def test_a_pause_of_threads_is_of_the_stage_before_or_after_it(stages: str, kinds: str, found: str) -> None:
    letters = {".": NONE, "o": OTHER, "f": STAGES.index("forward"), "b": STAGES.index("backward")}
    result = np.array([letters[one] for one in stages], np.int64)
    calls, waits = (np.array([kind == one for kind in kinds], np.bool_) for one in "cw")
    decided = np.array([one in "fb" for one in stages], np.bool_)
    stage_runs._fill_pauses(result, calls | waits, decided, calls, waits)
    assert result.tolist() == [letters[one] for one in found]


def test_all_short_rows_of_gaps_are_closed_as_one_by_one() -> None:
    kinds = ((NONE, 0, False), (NONE, 1, False), (0, 1, False), (1, 1, True), (OTHER, 1, False))
    for pieces in product(kinds, repeat=4):
        stage, length, waits = ([piece[place] for piece in pieces] for place in range(3))
        edges = np.cumsum([0, *(10 * each for each in length)])
        found = stage_runs._close_gaps(edges[:-1], np.array(stage), int(edges[-1]), np.array(waits))
        assert found.tolist() == one_by_one([10 * each for each in length], stage, waits), pieces


@pytest.mark.parametrize(
    ("start", "end", "runs"),
    [
        (5, 30, [(5, 10, "forward"), (10, 20, "backward"), (20, 30, "other")]),
        (10, 20, [(10, 20, "backward")]),
        (-50, 10, [(-50, 0, "other"), (0, 10, "forward")]),
        (29, 40, [(29, 30, "other"), (30, 40, "forward")]),
        (35, 1000, [(35, 1000, "forward")]),
    ],
)
def test_the_runs_of_a_step_are_cut_at_its_ends(
    start: int, end: int, runs: list[tuple[int, int, str]]
) -> None:
    times, stages = np.array([0, 10, 20, 30]), np.array(codes("forward", "backward", None, "forward"))
    timeline = stage_runs._Timeline(times, stages, np.zeros(4, np.bool_))
    begin, finish, stage = stage_runs._runs_of_step(timeline, start, end)
    assert list(zip(begin.tolist(), finish.tolist(), decoded(stage), strict=True)) == runs


def test_what_a_wait_ends_is_not_continued_after_it() -> None:
    times, stages = np.array([0, 10, 20]), np.array(codes("forward", None, "forward"))
    for waits, between in (([True, False, False], "other"), ([False] * 3, "forward")):
        timeline = stage_runs._Timeline(times, stages, np.array(waits))
        stage = stage_runs._runs_of_step(timeline, 5, 100)[2]
        assert decoded(stage) == ["forward", between, "forward"][: 3 if between == "other" else 1]


@pytest.mark.parametrize(
    ("cpu", "device", "communication", "idle", "stage", "bound"),
    [
        (10, 9, 0, 0, "forward", "cpu"),
        (100, 91, 0, 0, "forward", "device"),  # as in the verdict
        (100, 91, 50, 0, "forward", "communication"),
        (10, 10, 0, 0, "forward", "device"),
        (10, 10, 5, 0, "forward", "device"),
        (10, 10, 6, 0, "forward", "communication"),
        (10, 9, 9, 0, "forward", "cpu"),
        (10, 99, 99, 0, "data_loading", "data"),
        (0, 0, 0, 0, "backward", "cpu"),  # its thread waits for others of the CPU, as in JAX
        (10, 9, 0, 10, "forward", "cpu"),
        (10, 20, 0, 20, "forward", "device"),
        (10, 20, 0, 21, "forward", None),  # the CPU waits for a device that seems to do nothing
        (10, 20, 0, 21, "data_loading", "data"),
    ],
)
def test_what_takes_longest_bounds_a_run(
    cpu: int, device: int, communication: int, idle: int, stage: str, bound: str | None
) -> None:
    columns = (np.array([value]) for value in (cpu, device, communication, idle))
    assert (*BOUNDS, None)[stage_runs._bound(*columns, np.array(codes(stage)))[0]] == bound


def test_device_work_is_of_the_last_run_that_began_before_its_launch() -> None:
    trace = annotate(
        drawn_trace("""
        main     |   0 1000 | ProfilerStep#1
        main     |   0  200 | ## forward ##
        main     |  10   20 | cudaLaunchKernel | corr=1
        main     |  30   40 | cudaLaunchKernel | corr=2
        main     | 300  500 | ## backward ##
        main     | 310  320 | cudaLaunchKernel | corr=3
        main     | 600  800 | ## forward ##
        main     | 610  620 | cudaLaunchKernel | corr=4
        stream 7 | 100  150 | a | corr=1
        stream 8 | 120  250 | b | corr=2
        stream 7 | 320  390 | c | corr=3
        stream 7 | 700  710 | d | corr=4
        stream 8 | 900  950 | e | corr=4
    """)
    )
    columns = ("stage", "start_ns", "end_ns", "cpu_ns", "device_ns", "device_start_ns", "device_end_ns")
    found = [row for row in us(trace, "stages", *columns) if row[0] != "other"]
    assert found == [
        ("forward", 0, 200, 200, 150, 100, 250),
        ("backward", 300, 500, 200, 70, 320, 390),
        ("forward", 600, 800, 200, 60, 700, 950),
    ]
    others = [row for row in us(trace, "stages", *columns) if row[0] == "other"]
    assert {row[4:] for row in others} == {(0, None, None)}


def test_a_stage_that_only_a_device_has_is_a_run_without_length() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0  1 | aten::first
        main     | 10 11 | cudaLaunchKernel | corr=1
        main     | 12 13 | cudaLaunchKernel | corr=2
        stream 7 | 20 30 | k      | corr=1
        stream 7 | 30 35 | k2     | corr=2
        stream 7 | 40 50 | lost
        stream 7 | 55 58 | load
        stream 7 | 60 70 | known
        stream 7 | 80 90 | no_step
    """)
    )
    stage = {"k": "optimizer", "k2": "optimizer", "lost": "backward", "known": "forward", "no_step": "loss"}
    stage["load"] = "data_loading"
    names = trace.events.text("name")
    trace = trace.with_events(
        stage=Text.of(stage.get(name or "") for name in names),
        step=[-1 if name == "no_step" else 0 for name in names],
    )
    columns = (np.array([0], np.int32), np.array([0]), np.array([100_000]), np.array(codes("forward")))
    step, starts, ends, found = stage_runs._with_device_only(trace, *columns)
    rows = list(zip((starts // 1000).tolist(), (ends // 1000).tolist(), decoded(found), strict=True))
    assert rows == [
        (0, 100, "forward"),
        (10, 10, "optimizer"),
        (40, 40, "backward"),
        (55, 55, "data_loading"),
    ]
    assert step.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "device_end", "bounds"),
    [
        ("main | 0 9 | x", -1, ([1], [5])),
        ("main | 0 9 | x", 7, ([2], [8])),  # threads of the CPU end its work
        ("main | 0 9 | x\nstream 7 | 0 9 | k", 7, ([1], [5])),
    ],
)
def test_a_step_is_its_window_where_threads_of_the_cpu_end_its_work(
    text: str, device_end: int, bounds: tuple[list[int], list[int]]
) -> None:
    columns = {"start_ns": [1], "end_ns": [5], "window_start_ns": [2], "window_end_ns": [8]}
    trace = drawn_trace(text).with_table(Table(STEPS, {**columns, "device_end_ns": [device_end]}))
    assert tuple(column.tolist() for column in stage_runs._bounds(trace)) == bounds


def test_calls_waits_and_work_of_the_loop_are_told_apart() -> None:
    trace = drawn_trace("""
        main  |  0 20 | PjitFunction(f) | cat=runtime
        main  |  5 10 | backend_compile | cat=annotation
        main  | 30 50 | evaluate | cat=annotation
        main  | 32 40 | PjitFunction(g) | cat=runtime
        main  | 60 70 | PjitFunction(h) | cat=runtime
        main  | 61 69 | PjitFunction(h) | cat=runtime
        main  | 75 80 | wait: x | cat=runtime
        main  | 82 85 | fusion | scope=jit(f)/a
        other | 90 99 | PjitFunction(f) | cat=runtime
    """)
    stage = [("evaluation" if name == "evaluate" else None) for name in trace.events.text("name")]
    found = stage_runs._calls_waits_and_work(trace.with_events(stage=Text.of(stage)), 0)
    spans = [
        list(zip((one.starts // 1000).tolist(), (one.ends // 1000).tolist(), strict=True)) for one in found
    ]
    assert spans == [[(0, 5), (10, 20), (60, 70)], [(75, 80)], [(82, 85)]]
