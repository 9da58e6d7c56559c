"""What is made of the rounds, and of a recording that took longer than the step unrecorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, select, simulate
from stepscope.models.verify import MeasuredRuns, TrialComparison
from stepscope.models.verify.comparison import middle_mean, unrecorded
from stepscope.models.verify.verify import parse_specs, requests_of
from stepscope.models.whatif import Prediction
from stepscope.testing import drawn_trace


def graph_of(text: str) -> Graph:
    return build_graph(annotate(drawn_trace(text))).check()


def comparison(before: MeasuredRuns, after: MeasuredRuns) -> TrialComparison:
    return TrialComparison("train.py", ("amp",), before, after, 1.0, None, "no reason", {}, {})


def run(step_ms: float) -> dict[str, Any]:
    parts = {"data_loading": [1e6, 1e6], "optimizer": [step_ms * 1e5] * 2}
    return {"steps_ns": [step_ms * 0.5e6, step_ms * 1.5e6], "cpu_ns": [1e6, 3e6], "parts_ns": parts}


def taking(step_ms: float, **parts_ms: float) -> MeasuredRuns:
    return MeasuredRuns((step_ms,), (step_ms,), parts_ms)


def test_a_run_is_its_mean_step_and_the_answer_the_median_run() -> None:
    measured = MeasuredRuns.of([run(10), run(30), run(11)])
    assert measured.rounds_ms == (10, 30, 11)
    assert measured.cpu_ms == (2, 2, 2)
    assert measured.step_ms == 11
    assert measured.parts_ms == {"data_loading": 1, "optimizer": pytest.approx(1.1)}
    assert measured.spread == pytest.approx(20 / 11)


def test_short_and_long_steps_in_turn_count_alike_and_an_odd_one_does_not() -> None:
    assert middle_mean([10, 30] * 4) == 20
    assert middle_mean([10] * 7 + [500]) == 10
    assert middle_mean([10, 20, 30]) == 20


def test_the_speedup_is_the_ratio_of_the_steps_shown() -> None:
    # The machine was slow in the second round, for both.
    answer = comparison(MeasuredRuns((10, 30, 10), (1,) * 3, {}), MeasuredRuns((5, 15, 5), (1,) * 3, {}))
    assert answer.measured_speedup == 2
    assert answer.measured_range == (pytest.approx(2), pytest.approx(2))
    assert answer.error is answer.right_sign is None
    assert answer.to_json()["no_prediction"] == "no reason"


def sides(before: tuple[float, ...], after: tuple[float, ...]) -> tuple[MeasuredRuns, MeasuredRuns]:
    return MeasuredRuns(before, before, {}), MeasuredRuns(after, after, {})


def test_a_difference_within_the_noise_is_not_judged() -> None:
    # From a busy machine: spreads of 33 % and 20 %, medians of 197 and 227 ms.
    answer = comparison(*sides((197.0, 180.0, 245.0), (200.0, 227.0, 246.0)))
    assert answer.measured_speedup == pytest.approx(197 / 227)
    assert answer.verdict == "cannot tell"
    assert answer.measured_range is not None
    assert answer.measured_range[0] < 1 < answer.measured_range[1]
    one_round = comparison(*sides((10.0,), (5.0,)))
    assert (one_round.measured_range, one_round.verdict) == (None, "cannot tell")


def predicted(replayed_ms: float, predicted_ms: float, error: float) -> Prediction:
    low, high = predicted_ms * (1 - error), predicted_ms * (1 + error)
    return Prediction(
        replayed_ms,
        replayed_ms,
        0.0,
        predicted_ms,
        replayed_ms / predicted_ms,
        (low, high),
        ("amp",),
        ("",),
        (),
        {},
        {},
    )


def test_a_clear_difference_is_held_against_the_prediction() -> None:
    before, after = sides((10.0, 10.1, 10.2), (8.0, 8.1, 8.2))
    for predicted_ms, verdict in ((8.5, "confirmed"), (12.0, "contradicted"), (9.9, "measured")):
        answer = TrialComparison(
            "train.py", ("amp",), before, after, 10.0, predicted(10.0, predicted_ms, 0.1), None, {}, {}
        )
        assert answer.verdict == verdict
        assert answer.to_json()["verdict"] == verdict


@pytest.mark.parametrize("rounds", [3, 5])
def test_noise_alone_is_rarely_taken_for_an_effect(rounds: int) -> None:
    noise = np.exp(np.random.default_rng(7).normal(0, 0.1, (2000, 2, rounds)))
    answers = [comparison(*sides(tuple(before), tuple(after))) for before, after in noise]
    assert np.mean([answer.is_significant for answer in answers]) < 0.06


# 5 us of recording in each of: the operator, its inner, the rest of the operator, the gap behind.
RECORDED = """
    main |   0 100 | ProfilerStep#0
    main |   0  60 | aten::linear
    main |  20  50 | aten::mm
"""


def test_recording_costs_the_same_for_each_task() -> None:
    graph = graph_of(RECORDED)
    shorter = unrecorded(graph, taking(0.094))
    assert simulate(shorter).step_ns.tolist() == pytest.approx([94_000], abs=4)
    assert shorter.window.measured_ns.tolist() == [94_000]
    lost = graph.tasks["duration_ns"] - shorter.tasks["duration_ns"]
    lost = lost + graph.tasks["gap_ns"] - shorter.tasks["gap_ns"]
    assert set(lost[lost > 0].tolist()) == {2_000}


def test_each_part_becomes_as_long_as_it_is_unrecorded() -> None:
    graph = graph_of("""
        main |   0 100 | ProfilerStep#0
        main |   0  60 | ## forward ##
        main |   0  60 | aten::mm
        main |  60 100 | ## optimizer ##
        main |  60 100 | aten::add_
    """)
    shorter = unrecorded(graph, taking(0.08, optimizer=0.01, data_loading=0))
    named = {"aten::mm": 70_000, "aten::add_": 10_000}  # forward took longer, the optimizer less
    for name, length in named.items():
        tasks = shorter.tasks["duration_ns"] + shorter.tasks["gap_ns"]
        assert tasks[select(shorter, name=name)].sum() == pytest.approx(length, abs=2)
    assert simulate(shorter).step_ns.tolist() == pytest.approx([80_000], abs=4)


def test_no_task_loses_more_than_it_has() -> None:
    shorter = unrecorded(graph_of(RECORDED), taking(0.03))
    assert (shorter.tasks["duration_ns"] >= 0).all()
    assert (shorter.tasks["gap_ns"] >= 0).all()
    assert simulate(shorter).step_ns.tolist() == pytest.approx([30_000], abs=4)


def test_a_step_that_was_longer_unrecorded_is_stretched() -> None:
    longer = unrecorded(graph_of(RECORDED), taking(0.2))
    assert simulate(longer).step_ns.tolist() == [200_000]
    graph = graph_of(RECORDED)
    assert np.array_equal(longer.tasks["duration_ns"], 2 * graph.tasks["duration_ns"])


def test_where_a_device_works_all_is_shortened_alike() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  20 | cudaLaunchKernel | corr=7
        stream 7 | 30  80 | kernel           | corr=7
    """)
    shorter = unrecorded(graph, taking(0.05))
    assert simulate(shorter).step_ns.tolist() == [50_000]
    assert simulate(shorter).start_ns.tolist() == (simulate(graph).start_ns // 2).tolist()


def test_the_cores_are_shared_by_what_all_changes_leave() -> None:
    graph = graph_of("main | 0 100 | ProfilerStep#0\nmain | 0 60 | aten::mm")
    specs = parse_specs("ddp:workers=2+compress")
    assert [one.change.name for one in requests_of(specs, graph)] == ["ddp", "compress", "shared_cores"]
