"""The tree of costs that the page and the editor show."""

from __future__ import annotations

import msgspec

from stepscope.annotate import annotate
from stepscope.annotate.attribution import attribute
from stepscope.batch_size.batch_panel import CostNode
from stepscope.batch_size.module_tree import module_tree
from stepscope.testing import drawn_trace


def test_time_in_which_nothing_runs_is_a_complete_node() -> None:
    trace = annotate(
        drawn_trace(
            "main | 0 100 | ProfilerStep#1 | category=user_annotation\nmain | 10 20 | aten::mm"
        )
    )
    tree = module_tree(trace, attribute(trace), [], [], [], step_ms=5.0)
    (idle,) = msgspec.convert(tree, CostNode).children
    assert (idle.name, idle.ms, idle.self_ms, idle.self_bytes) == ("idle", 5.0, 5.0, 0.0)
