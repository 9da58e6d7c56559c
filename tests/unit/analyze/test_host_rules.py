"""Rules on steps of a CPU alone, drawn: what they must not say."""

from __future__ import annotations

import pytest
from drawn_findings import found


def calls(name: str, count: int, first: float, each: float = 5) -> str:
    """Operators in a row."""
    starts = [first + number * each for number in range(count)]
    return "\n".join(f"main | {at} {at + each - 1} | {name}" for at in starts)


UPDATE = """
    main | 0 1000 | ProfilerStep#0
    main | 10 100 | autograd::engine::evaluate_function: MmBackward0
    main | 110 119 | aten::_foreach_norm
    main | 120 900 | Optimizer.step#{name}.step
"""


def test_clipping_gradients_is_no_part_of_the_update() -> None:
    finding = found("optimizer_loop", UPDATE.format(name="AdamW") + calls("aten::mul_", 100, 130))
    assert finding is not None
    assert "one parameter after the other (a for-loop): 100 operators a step" in finding.what
    assert finding.gain.ms == pytest.approx(0.78)  # all of Optimizer.step


def test_lbfgs_works_on_one_vector_and_not_on_parameter_after_parameter() -> None:
    text = UPDATE.format(name="LBFGS") + calls("aten::mul_", 100, 130)
    assert found("optimizer_loop", text) is None


def test_numbers_that_the_optimizer_reads_are_not_the_scripts() -> None:
    own = UPDATE.format(name="AdamW") + calls("aten::item", 100, 130)
    assert found("synchronising_calls", own) is None
    assert found("synchronising_calls", own.replace("120 900 |", "120 125 |")) is not None


VIEWS = """
    main | 0 1000 | ProfilerStep#0
    main | 10 12 | aten::{name} | seq=1
    main | 100 900 | autograd::engine::evaluate_function: {node}Backward0 | seq=1 fwd=1
    main | 110 890 | {node}Backward0 | seq=1 fwd=1
"""


def test_a_view_has_no_form_with_a_cheaper_gradient() -> None:
    view = found("forward_backward", VIEWS.format(name="slice", node="Slice"))
    other = found("forward_backward", VIEWS.format(name="cumsum", node="Cumsum"))
    assert view is not None
    assert other is not None
    assert "take all parts at once" in view.advice
    assert "look for another form" in other.advice
    assert "if it took no time" in view.gain.words


SMALL = """
    main | 0 1000 | ProfilerStep#0
    main | 10 {loaded} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 910 915 | aten::linear | Input_Dims=[[4,512],[512,512]] seq=1
    main | 950 955 | autograd::engine::evaluate_function: LinearBackward0 | seq=1 fwd=1
"""


def test_loading_a_batch_is_no_overhead_that_a_larger_one_would_share() -> None:
    assert found("small_batch", SMALL.format(loaded=900)) is None
    finding = found("small_batch", SMALL.format(loaded=20))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.99)
