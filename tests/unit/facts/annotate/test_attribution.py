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


def test_backward_has_the_attribution_of_forward() -> None:
    """Of lines, of operators and of what is around and inside them."""
    trace = annotate(
        drawn_trace(f"""
        main     |  0 100 | ProfilerStep#0
        main     |  2  30 | {LINES_RANGE}/p/net.py:3
        main     |  3  20 | aten::linear | seq=1
        main     |  4  10 | aten::addmm
        main     | 32  40 | {LINES_RANGE}/p/train.py:9
        autograd | 50  70 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
        autograd | 52  60 | aten::mm
        autograd | 80  90 | autograd::engine::evaluate_function: Accumulate
    """)
    )
    told = attribute(trace)
    names = [(name or "").rpartition(" ")[2] for name in trace.events.text("name")]
    lines = {
        name: told.stacks[row] if row >= 0 else None
        for name, row in zip(names, told.lines.tolist(), strict=True)
    }
    operators = {
        name: told.operators[row] if row >= 0 else None
        for name, row in zip(names, told.operator.tolist(), strict=True)
    }
    net = (("/p/net.py", 3),)
    assert {
        name: lines[name]
        for name in ("aten::linear", "aten::addmm", "AddmmBackward0", "aten::mm", "Accumulate")
    } == {
        **dict.fromkeys(("aten::linear", "aten::addmm", "AddmmBackward0", "aten::mm"), net),
        "Accumulate": None,
    }
    assert {
        name: operators[name] for name in ("aten::addmm", "AddmmBackward0", "aten::mm", "Accumulate")
    } == {
        **dict.fromkeys(("aten::addmm", "AddmmBackward0", "aten::mm"), "aten::linear"),
        "Accumulate": "Accumulate",
    }
    assert told.backward.tolist() == [name in ("AddmmBackward0", "aten::mm", "Accumulate") for name in names]
    assert told.module.tolist() == [-1] * len(names)
    assert told.stage.tolist() == trace.events["stage"].tolist()
    root = {
        name: names[row] if row >= 0 else None for name, row in zip(names, told.root.tolist(), strict=True)
    }
    assert (root["aten::addmm"], root["aten::mm"]) == ("aten::linear", "AddmmBackward0")
