"""The tree of costs that the page and the editor show."""

from __future__ import annotations

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.attribution import attribute
from stepscope.models.batch_size.breakdown import Footprint, cost_tree, find_costs
from stepscope.testing import drawn_trace


def test_time_in_which_nothing_runs_is_a_complete_node() -> None:
    trace = annotate(
        drawn_trace("main | 0 100 | ProfilerStep#1 | category=user_annotation\nmain | 10 20 | aten::mm")
    )
    tree = cost_tree(trace, attribute(trace), [], Footprint(0), step_ms=5.0)
    (idle,) = tree.children
    assert (idle.name, idle.ms, idle.self_ms, idle.self_bytes) == ("idle", 5.0, 5.0, 0.0)


def test_time_of_no_operator_is_untracked_and_the_parts_are_the_step() -> None:
    trace = annotate(
        drawn_trace("main | 0 100 | ProfilerStep#1 | category=user_annotation\nmain | 10 20 | aten::mm")
    )
    attribution = attribute(trace)
    costs = find_costs(trace, attribution, 1, scale=0.5)  # recording made the step twice as long
    tree = cost_tree(trace, attribution, costs, Footprint(0), step_ms=0.05)
    assert [(one.name, round(one.ms, 6)) for one in tree.children] == [
        ("untracked", 0.045),
        ("forward", 0.005),
    ]
