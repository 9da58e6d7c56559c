"""Which line a recorded moment belongs to."""

from __future__ import annotations

import numpy as np
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


def test_the_root_of_an_operator_is_the_outermost_one_below_ranges() -> None:
    trace = drawn_trace("""
        main |  0 90 | stepscope.module: net
        main | 10 50 | aten::linear
        main | 20 40 | aten::addmm
        main | 60 80 | aten::relu
    """)
    assert attribute(trace).root.tolist() == [-1, 1, 1, 3]


def test_what_the_first_event_is_the_forward_of_is_backward() -> None:
    trace = drawn_trace("main | 0 10 | aten::mm\nmain | 20 30 | MmBackward0")
    trace = trace.with_events(forward_event=np.array([-1, 0], np.int32))
    assert attribute(trace).backward.tolist() == [False, True]
