"""Evaluation, checkpointing and blocks without gradients inside of recorded steps."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.report_facts import places_of, summarize
from stepscope.facts.summary.report_text import places_text
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.read.recorded.members_json import CATEGORY, IN_LOOP
from stepscope.testing import drawn_trace
from stepscope.trace.schema import INSTANTS
from stepscope.trace.table import Table, Text

STEP = """
    main | {at0} {at100} | ProfilerStep#{n}
    main | {at1} {at10}  | stepscope.module: net
    main | {at2} {at9}   | aten::mm        | seq={n}
    main | {at12} {at30} | MmBackward0     | seq={n} fwd=1
    main | {at32} {at38} | Optimizer.step#SGD.step
    main | {at40} {at48} | stepscope.block: update_average (/x/train.py:7)
    main | {at41} {at47} | aten::lerp_
    main | {at50} {at80} | stepscope.evaluation: evaluate (/x/train.py:20)
    main | {at51} {at70} | stepscope.module: net
    main | {at52} {at69} | aten::addmm
    main | {at82} {at95} | stepscope.checkpointing: save_all (/x/train.py:31)
"""


def steps(count: int) -> str:
    return "\n".join(
        STEP.format(n=number, **{f"at{us}": 100 * number + us for us in range(101)})
        for number in range(count)
    )


def test_they_are_stages_of_their_own() -> None:
    trace = annotate(drawn_trace(steps(2)))
    facts = summarize(trace)
    spent = {stage.stage: stage.cpu_ms * 1000 for stage in facts.stages}
    assert spent["evaluation"] == pytest.approx(30, abs=3)
    assert spent["checkpointing"] == pytest.approx(13, abs=3)
    assert spent["forward"] == pytest.approx(9, abs=3)
    assert trace["modules"]["calls"].tolist()[-1] == 2  # not those of the evaluation


def test_where_they_begin() -> None:
    facts = summarize(annotate(drawn_trace(steps(3))))
    found = [(p.stage, p.function, p.line, round(p.ms * 1000), p.calls) for p in facts.places]
    assert found == [
        ("evaluation", "evaluate", 20, 30, 1.0),
        ("checkpointing", "save_all", 31, 13, 1.0),
        ("other", "update_average", 7, 8, 1.0),
    ]
    assert "of other in update_average, train.py:7" in places_text(facts).plain


def test_a_checkpoint_that_takes_longer_in_the_rest_of_the_run_says_so() -> None:
    """13 µs in each recorded step; the median of the run is 20, and that of the evaluation as recorded."""
    places = [("save_all", 31, 20_000), ("evaluate", 20, 30_000), ("update_average", 7, None)]
    named = [
        {"function": name, "file": "/x/train.py", "line": line, "median_ns": ns} for name, line, ns in places
    ]
    recorded = drawn_trace(steps(3), capture={"run_shares": {"places": named}})
    trace = annotate(recorded)
    selected = SelectedSteps(trace, trace.metadata.ranks[0], None)
    found = {place.function: place for place in places_of(selected)}
    assert found["save_all"].error_ms == pytest.approx(0.007)
    assert found["evaluate"].error_ms == found["update_average"].error_ms == 0
    said = places_text(replace(summarize(annotate(drawn_trace(steps(3)))), places=[*found.values()])).plain
    assert "0.01 ± 0.007 ms of checkpointing in save_all, train.py:31" in said
    assert "\n  0.008 ms of other in update_average" in said


def test_a_block_that_outlasts_the_steps_counts_within_them() -> None:
    text = STEP.replace("{at48} | stepscope.block", "{at130} | stepscope.block")
    facts = summarize(annotate(drawn_trace(text.format(n=0, **{f"at{us}": us for us in range(131)}))))
    (block,) = [place for place in facts.places if place.function == "update_average"]
    assert block.ms * 1000 == pytest.approx(60)


def test_a_teacher_without_gradients_is_forward() -> None:
    """A block whose purpose is unknown has the stage of its place in the step."""
    trace = annotate(
        drawn_trace("""
            main |  0 90 | ProfilerStep#0
            main |  1 20 | stepscope.block: train (/x/train.py:7)
            main |  2 19 | stepscope.module: teacher
            main |  3 18 | aten::mm
            main | 22 30 | stepscope.module: student
            main | 23 29 | aten::addmm     | seq=1
            main | 32 60 | AddmmBackward0  | seq=1 fwd=1
            main | 62 80 | Optimizer.step#SGD.step
        """)
    )
    stages = {stage.stage for stage in summarize(trace).stages}
    assert "evaluation" not in stages
    assert not summarize(trace).places


def sampled(count: int, samples: dict[float, str], in_loop: str = "", text: str = "") -> Summary:
    """Steps whose training loop was sampled, by the time of each sample, us."""
    trace = drawn_trace(text or steps(count))
    kinds = [IN_LOOP if name == in_loop else CATEGORY for name in samples.values()]
    instants = Table(
        INSTANTS,
        {
            "time_ns": np.array([1000 * at for at in samples], np.int64),
            "track": np.zeros(len(samples), np.int64),
            "source": np.full(len(samples), -1),
            "name": Text.of(samples.values()),
            "category": Text.of(kinds),
            "phase": Text.constant("i", len(samples)),
        },
    )
    return summarize(annotate(trace.with_table(instants)))


LOG, METRIC = "log (/x/train.py:{})", "metric (/x/train.py:50)"
SAMPLES = {
    5: "main (/x/train.py:1)",
    44: LOG.format(44),
    60: LOG.format(60),
    39: LOG.format(40),
    48.5: LOG.format(41),
    96: LOG.format(41),
    97: METRIC,
    98: METRIC,
    139: METRIC,
}


def test_the_rest_of_other_is_divided_by_samples() -> None:
    """Samples in other stages, and in what ranges mark, do not count."""
    facts = sampled(2, SAMPLES)
    found = {place.function: (place.line, place.calls, place.samples) for place in facts.places}
    assert found == {
        "evaluate": (20, 1.0, 0),
        "save_all": (31, 1.0, 0),
        "update_average": (7, 1.0, 0),
        "log": (41, 0.0, 3),
        "metric": (50, 0.0, 3),
    }
    places = {place.function: place for place in facts.places}
    log, metric = places["log"], places["metric"]
    (other,) = (stage for stage in facts.stages if stage.stage == "other")
    assert log.ms == metric.ms == pytest.approx((other.cpu_ms - 0.008) / 2)
    assert log.error_ms == pytest.approx(2 * (0.25 / 10) ** 0.5 * 2 * log.ms)
    line = "about 0.007 ± 0.005 ms of other in log, train.py:41 (3 samples)"
    assert line in places_text(facts).plain


def test_a_batch_that_loads_in_the_main_process_has_its_functions() -> None:
    """The line of the loop that asks for it says nothing."""
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    text = f"main | 0 100 | ProfilerStep#0\nmain | 1 70 | {loading}\nmain | 72 90 | aten::mm"
    loop = "main (/x/train.py:3)"
    samples = {10.0: loop, 20: loop, 30: loop, 40: METRIC, 50: METRIC, 60: METRIC}
    facts = sampled(1, samples, in_loop=loop, text=text)
    (place,) = facts.places
    assert (place.stage, place.function, place.line) == ("data_loading", "metric", 50)
    assert place.ms == pytest.approx(0.035)
    assert "of data loading in metric, train.py:50" in places_text(facts).plain


def test_each_line_of_the_loop_itself_is_a_place() -> None:
    again = {at + 100: name for at, name in SAMPLES.items()}
    more = {at + 200: LOG.format(40) for at in (39, 48.5, 96)}
    facts = sampled(3, {**SAMPLES, **again, **more}, in_loop=LOG.format(40))
    found = {(place.function, place.line): place.samples for place in facts.places if place.samples}
    assert found == {("log", 40): 5, ("log", 41): 4, ("metric", 50): 4}


def test_a_comprehension_counts_with_its_function() -> None:
    inner = LOG.format(41).replace("log ", "log.<locals>.<dictcomp> ")
    facts = sampled(2, {at: inner if name == LOG.format(41) else name for at, name in SAMPLES.items()})
    assert facts.places == sampled(2, SAMPLES).places


def test_one_in_the_loop_itself_counts_with_its_line() -> None:
    inner = LOG.format(40).replace("log ", "log.<locals>.<listcomp>.<listcomp> ")
    samples = {96 + 0.2 * at: inner if at % 2 else LOG.format(40) for at in range(10)}
    (place,) = [one for one in sampled(2, samples, in_loop=LOG.format(40)).places if one.samples]
    assert (place.function, place.line, place.samples) == ("log", 40, 10)


def test_few_samples_say_nothing() -> None:
    assert not any(place.samples for place in sampled(2, {97: LOG.format(4)}).places)


def test_a_place_whose_error_is_as_large_as_its_time_is_not_named() -> None:
    """Of 60 samples, 3 are 5 ± 6 %; 6 are 10 ± 8 %."""
    of_metric = {96 + 0.05 * number: METRIC for number in range(54)}
    for count, names in (3, {"metric"}), (6, {"metric", "log"}):
        of_log = {81 + 0.1 * number: LOG.format(4) for number in range(count)}
        facts = sampled(2, {**of_metric, **of_log})
        assert {place.function for place in facts.places if place.samples} == names


def test_why_nothing_was_sampled() -> None:
    """Only where `other` is much of the step."""
    facts = replace(sampled(2, {}), not_sampled="samples need Linux")
    assert "other has no functions and lines: samples need Linux" in places_text(facts).plain
    trained = [stage for stage in facts.stages if stage.stage != "other"]
    assert "samples need" not in places_text(replace(facts, stages=trained)).plain
