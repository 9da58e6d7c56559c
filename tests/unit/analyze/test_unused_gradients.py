"""Gradients that no update uses: of a generator in the update of its discriminator."""

from __future__ import annotations

import pytest
from drawn_findings import found

from stepscope.analyze import Finding

OF_GAN = {"d": ["D"], "g": ["G"], "": []}

# The loss of d needs D alone; that of g needs D on the way to G.
GAN = """
    main | 0 1000   | ProfilerStep#0
    main | 10 60    | stepscope.module: G
    main | 20 50    | aten::mm | seq=1
    main | 70 120   | stepscope.module: D
    main | 80 110   | aten::mm | seq=2
    main | 130 140  | Optimizer.zero_grad#Adam.zero_grad
    main | 150 250  | autograd::engine::evaluate_function: MmBackward0 | seq=2 fwd=1
    main | 260 400  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 410 440  | stepscope.optimizer: d
    main | 510 560  | stepscope.module: G
    main | 520 550  | aten::mm | seq=3
    main | 570 620  | stepscope.module: D
    main | 580 610  | aten::mm | seq=4
    main | 630 640  | Optimizer.zero_grad#Adam.zero_grad
    main | 650 750  | autograd::engine::evaluate_function: MmBackward0 | seq=4 fwd=1
    main | 760 900  | autograd::engine::evaluate_function: MmBackward0 | seq=3 fwd=1
    main | 910 940  | stepscope.optimizer: g
"""


def unused(text: str, updated: dict[str, list[str]]) -> Finding | None:
    return found("unused_gradients", text, capture={"updated_modules": updated})


def test_an_update_that_goes_on_into_the_other_model_is_found() -> None:
    finding = unused(GAN, OF_GAN)
    assert finding is not None
    assert finding.what == (
        "Backward computes unused gradients, 0.14 ms per step. "
        "They are of G, which the update of d does not change."
    )
    assert "fake.detach()" in finding.advice
    assert finding.gain.ms == pytest.approx(0.14)
    assert finding.gain.stated_ms == pytest.approx((0.6 * 0.14, 1.25 * 0.14))  # a detach surely saves some


def without(text: str, *parts: str) -> str:
    return "\n".join(line for line in text.splitlines() if not any(part in line for part in parts))


@pytest.mark.parametrize(
    ("text", "updated"),
    [
        pytest.param(without(GAN, "260 400"), OF_GAN, id="detached"),
        pytest.param(GAN, {}, id="nothing says what an optimizer updates"),
        pytest.param(GAN, {"d": ["D", "G"], "g": ["G"], "": []}, id="it updates both"),
        pytest.param(GAN, {"d": ["G"], "g": ["G"], "": ["D"]}, id="frozen on the way"),
        pytest.param(without(GAN, "zero_grad"), OF_GAN, id="the gradients are added up"),
        pytest.param(without(GAN, "optimizer: d"), OF_GAN, id="one loss for both"),
    ],
)
def test_nothing_else_is_unused(text: str, updated: dict[str, list[str]]) -> None:
    assert unused(text, updated) is None


def test_layers_that_no_optimizer_holds_should_not_need_gradients() -> None:
    """Only the head is fine-tuned, and nobody froze the body."""
    text = """
        main | 0 1000   | ProfilerStep#0
        main | 10 300   | stepscope.module: net
        main | 20 100   | stepscope.module: net.body
        main | 30 90    | aten::mm | seq=1
        main | 110 200  | stepscope.module: net.head
        main | 120 190  | aten::mm | seq=2
        main | 310 400  | autograd::engine::evaluate_function: MmBackward0 | seq=2 fwd=1
        main | 410 600  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 710 740  | stepscope.optimizer: optimizer
    """
    finding = unused(text, {"optimizer": ["net.head"], "": ["net.body"]})
    assert finding is not None
    assert finding.what == (
        "Backward computes unused gradients, 0.19 ms per step. "
        "They are of net.body, which no optimizer has updated so far."
    )
    assert "requires_grad_(False)" in finding.advice


# The teacher is called after the student; its first product computes the gradient of its weight alone.
TEACHER = """
    main | 0 1000   | ProfilerStep#0
    main | 10 100   | stepscope.module: student
    main | 20 90    | aten::mm | seq=1
    main | 110 200  | stepscope.module: teacher
    main | 120 190  | aten::mm | seq=2
    main | 310 400  | autograd::engine::evaluate_function: MmBackward0 | seq=2 fwd=1
    main | 320 350  | aten::mm
{second}
    main | 410 600  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 420 500  | aten::mm
    main | 710 740  | stepscope.optimizer: optimizer
"""
OF_STUDENT = {"optimizer": ["student"], "": ["teacher"]}


def test_a_teacher_that_no_optimizer_holds_should_not_need_gradients() -> None:
    finding = unused(TEACHER.format(second=""), OF_STUDENT)
    assert finding is not None
    assert finding.what == (
        "Backward computes unused gradients, 0.09 ms per step. "
        "They are of teacher, which no optimizer has updated so far."
    )


def test_through_a_model_that_passes_the_gradient_on_it_is_needed() -> None:
    second = "    main | 360 390  | aten::mm"
    assert unused(TEACHER.format(second=second), OF_STUDENT) is None


@pytest.mark.parametrize(("mask", "is_last"), [("[False,True,True]", True), ("[True,True,True]", False)])
def test_a_convolution_says_whether_it_computes_the_gradient_of_its_input(mask: str, is_last: bool) -> None:
    inputs = f'Concrete_Inputs=["","","{mask}"]'
    text = TEACHER.format(second="").replace(
        "main | 320 350  | aten::mm", f"main | 320 350  | aten::convolution_backward | {inputs}"
    )
    assert (unused(text, OF_STUDENT) is not None) is is_last
