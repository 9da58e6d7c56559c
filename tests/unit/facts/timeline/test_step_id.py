"""The id of a step: what every path of the timeline begins with."""

from __future__ import annotations

import pytest

from stepscope.errors import TraceError
from stepscope.facts.timeline.operation import StepId


@pytest.mark.parametrize("path", ["s5.12", "s5.12/t3", "s5.12/t3/m4.9"])
def test_a_path_tells_its_step_and_rank(path: str) -> None:
    assert StepId.of(path) == (5, 12)


def test_as_text_it_is_the_id_of_the_operation() -> None:
    assert str(StepId.of("s5.12/t3")) == "s5.12"


@pytest.mark.parametrize("path", ["", "t3", "s5", "s5.12x/t3", "x/s5.12", f"s{'9' * 5000}.0"])
def test_another_path_is_refused(path: str) -> None:
    with pytest.raises(TraceError, match="expected the path of an operation"):
        StepId.of(path)
