"""What the page is given: which changes apply, the answer, and two timelines of few rectangles."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from drawn_steps import V100, graph_of
from test_changes import FORWARD

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.graph import simulate
from stepscope.models.whatif import CHANGES
from stepscope.models.whatif.whatif_pane import Pane, rectangles
from stepscope.testing import drawn_trace


@pytest.fixture
def pane() -> Pane:
    return Pane(annotate(drawn_trace(FORWARD, devices=V100)))


def test_every_change_says_whether_it_applies(pane: Pane) -> None:
    assert [one.name for one in pane.changes] == list(CHANGES)
    found = {one.name: one for one in pane.changes}
    assert found["kernel_fusion"].applies
    assert not found["bandwidth"].applies
    assert found["bandwidth"].reason == "these steps have no collectives"
    assert found["checkpoint"].reason == "needs module"


def test_parameters_have_types_defaults_and_meanings(pane: Pane) -> None:
    (one,) = [change for change in pane.changes if change.name == "faster_gpu"]
    assert msgspec.to_builtins(one.parameters) == [
        {
            "name": "to",
            "type": "str",
            "default": "",
            "meaning": "a device of `data/gpus.json`; by default H100, or the next one that is faster.",
        },
        {
            "name": "estimate",
            "type": "str",
            "default": "typical",
            "meaning": "`typical`; `low` or `high` if kernels take 1.6 times as long or as short, "
            "which is the largest error that was measured.",
        },
    ]


def test_the_answer_is_that_of_the_command_with_both_timelines(pane: Pane) -> None:
    result = pane.answer(["scale:select=kind=gemm,factor=0.5"])
    assert msgspec.json.encode(result)
    assert result.answer.predicted_step_ms == pytest.approx((162 - 45) / 1000)
    timeline = result.timeline
    assert [one.name for one in timeline.threads] == ["main", "stream 7"]
    for side, length, begin in (("before", 162, 112), ("after", 117, 67)):
        drawn = getattr(timeline, side)
        assert drawn.length_us == length
        row = drawn.name.index("elementwise_relu")
        assert (drawn.start_us[row], drawn.duration_us[row]) == (begin, 30)


def test_a_new_thread_is_drawn_too(pane: Pane) -> None:
    timeline = pane.answer(["scale:select=kind=gemm,factor=1"]).timeline
    assert timeline.before.thread == timeline.after.thread
    assert set(timeline.after.thread) == {0, 1}


def test_a_change_that_does_not_apply_is_refused(pane: Pane) -> None:
    with pytest.raises(ChangeError, match="these steps have no collectives"):
        pane.answer(["bandwidth"])
    with pytest.raises(ChangeError, match="there is no change 'faster'"):
        pane.answer(["faster"])


MANY = "main | 0 1000 | ProfilerStep#0\n" + "\n".join(
    f"stream 7 | {10 * n} {10 * n + (200 if n == 50 else 4)} | {'long' if n == 50 else 'short'}"
    for n in range(90)
    if not 50 < n < 70
)


@pytest.mark.parametrize("most", [60, 20, 5])
def test_short_tasks_are_joined_until_there_are_few_enough(most: int) -> None:
    drawn = rectangles(simulate(graph_of(MANY)), most)
    assert len(drawn.thread) <= most
    assert sum(drawn.tasks) == 71
    assert drawn.start_us == sorted(drawn.start_us)
    ends = np.array(drawn.start_us) + drawn.duration_us
    assert (ends[:-1] <= np.array(drawn.start_us)[1:]).all()


def test_a_long_task_stays_on_its_own() -> None:
    drawn = rectangles(simulate(graph_of(MANY)), 20)
    row = drawn.name.index("long")
    assert (drawn.start_us[row], drawn.duration_us[row], drawn.tasks[row]) == (500, 200, 1)


def test_every_thread_with_work_has_a_rectangle() -> None:
    drawn = rectangles(simulate(graph_of(FORWARD)), 1)
    assert drawn.thread == [0, 1]
    assert drawn.tasks == [12, 3]
    assert drawn.name[1] == "volta_sgemm_128x64"


def test_a_step_without_work_draws_nothing() -> None:
    graph = graph_of("main | 0 100 | ProfilerStep#0")
    assert rectangles(simulate(graph), 10).thread == []
