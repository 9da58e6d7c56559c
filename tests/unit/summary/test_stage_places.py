"""Evaluation, checkpointing and blocks without gradients inside of recorded steps."""

from __future__ import annotations

import pytest

from stepscope.annotate import annotate
from stepscope.summary.report_facts import summarize
from stepscope.summary.stage_places_text import places_text
from stepscope.testing import drawn_trace

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
    assert "of other in update_average, train.py:7" in places_text(facts.places).plain


def test_a_block_that_outlasts_the_steps_counts_within_them() -> None:
    text = STEP.replace("{at48} | stepscope.block", "{at130} | stepscope.block")
    facts = summarize(
        annotate(drawn_trace(text.format(n=0, **{f"at{us}": us for us in range(131)})))
    )
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
