"""Which line a recorded moment belongs to."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.attribution import attribute
from stepscope.facts.annotate.range_names import LINES_RANGE
from stepscope.models.batch_size.breakdown import find_costs
from stepscope.testing import drawn_trace


def test_python_in_an_update_is_of_the_line_that_calls_for_it() -> None:
    trace = annotate(
        drawn_trace(f"""
        main |  0 100 | ProfilerStep#0
        main | 10  90 | Optimizer.step#Adam.step
        main | 20  30 | {LINES_RANGE}/p/train.py:7
        main | 21  29 | aten::mul_
        main | 50  60 | {LINES_RANGE}/p/train.py:7
        main | 51  59 | aten::add_
    """)
    )
    told = attribute(trace)
    costs = [one for one in find_costs(trace, told, 0, 1) if one.lines >= 0]
    assert {told.stacks[one.lines] for one in costs} == {(("/p/train.py", 7),)}
    assert sum(one.ms for one in costs) == pytest.approx(0.08)  # all of the update
