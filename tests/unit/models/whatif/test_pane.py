"""What the page is given: which changes apply, the answer, and two timelines of few rectangles."""

from __future__ import annotations

import msgspec
import pytest
from drawn_steps import V100
from test_changes import FORWARD

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.models.whatif import CHANGES
from stepscope.models.whatif.whatif_pane import Pane
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
            "name": "tf32",
            "type": "bool",
            "default": False,
            "meaning": "whether FP32 matrix products run in TF32 there, whatever the capture says.",
        },
        {
            "name": "estimate",
            "type": "str",
            "default": "typical",
            "meaning": "`typical`; `low` or `high` if device work takes 1.6 times as long or as short, "
            "the largest error that was measured, and the CPU of the other machine 1.5 times; in `low` "
            "FP32 stays FP32, in `high` all products run in TF32.",
        },
    ]


SLOWER = "scale:select=kind=gemm,factor=0.5"


def test_the_answer_is_that_of_the_command(pane: Pane) -> None:
    assert pane.answer([SLOWER]).predicted_step_ms == pytest.approx((162 - 45) / 1000)


def test_both_timelines_have_the_same_threads_and_partners(pane: Pane) -> None:
    threads, before, after = pane.timelines([SLOWER], 0, 2000)
    assert [one.name for one in threads] == ["main", "stream 7", "idle"]
    for drawn, length, begin in ((before, 162, 112), (after, 117, 67)):
        assert drawn.length_us == length
        idle = [us for us, kind in zip(drawn.duration_us, drawn.kind, strict=True) if kind == "idle"]
        assert sum(idle) == 22  # until the first kernel begins
        row = drawn.name.index("elementwise_relu")
        assert (drawn.start_us[row], drawn.duration_us[row]) == (begin, 30)
    gemm = after.name.index("volta_sgemm_128x64")
    assert before.name[after.partner[gemm]] == "volta_sgemm_128x64"
    assert (after.change_us[gemm], before.change_us[after.partner[gemm]]) == (-45, 45)


def test_a_change_that_does_not_apply_is_refused(pane: Pane) -> None:
    with pytest.raises(ChangeError, match="these steps have no collectives"):
        pane.answer(["bandwidth"])
    with pytest.raises(ChangeError, match="there is no change 'faster'"):
        pane.answer(["faster"])


def test_a_message_with_countless_changes_is_refused(pane: Pane) -> None:
    with pytest.raises(ChangeError, match="at most 200 changes at a time, found 201"):
        pane.answer([SLOWER] * 201)
