"""Distributed data parallel on a step with two modules, the all-reduces' times by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_steps import graph_of, step_us
from test_changes import COLLECTIVE

from stepscope.errors import ChangeError
from stepscope.graph import Graph, select
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table
from stepscope.whatif.ddp import ddp

MIB = 1 << 20
STEP = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  40 | ## backward ##
    main     | 10  12 | cudaLaunchKernel | corr=7
    main     | 20  22 | cudaLaunchKernel | corr=8
    main     | 50  60 | ## optimizer ##
    main     | 52  54 | cudaLaunchKernel | corr=9
    stream 7 | 20  40 | sgemm_last       | corr=7
    stream 7 | 40  60 | sgemm_first      | corr=8
    stream 7 | 62  72 | adam             | corr=9
"""


def with_modules(graph: Graph, first: int, last: int) -> Graph:
    """A root with two modules of so many bytes, the last of which is the first in backward."""
    table = Table(MODULES, {
        "parent": [-1, 0, 0], "path": ["", "first", "last"],
        "parameter_bytes": [first + last, first, last],
    })  # fmt: skip
    module = np.full(len(graph), -1)
    module[select(graph, name="sgemm_first")] = 1
    module[select(graph, name="sgemm_last")] = 2
    return replace(graph.with_tasks(module=module), trace=graph.trace.with_table(table))


@pytest.fixture
def graph() -> Graph:
    return with_modules(graph_of(STEP), 2 * MIB, MIB)


def test_each_bucket_is_reduced_once_its_gradients_are_there(graph: Graph) -> None:
    # 1 MiB fills the first bucket. Two workers send and receive half of it each: 1 MiB in all, over
    # 8 Gbit/s in 1048.576 us and 2 hops of 1 us; the second bucket is twice that, from then on.
    changed = ddp(graph, workers=2, bandwidth_gbps=8, latency_us=1)
    assert step_us(graph) == 100
    assert step_us(changed) == pytest.approx(40 + (1048.576 + 2) + (2 * 1048.576 + 2) + 10, abs=2)


def test_small_modules_share_a_bucket(graph: Graph) -> None:
    changed = ddp(with_modules(graph_of(STEP), MIB // 4, MIB // 4), bandwidth_gbps=8, latency_us=1)
    assert select(changed, category="communication").sum() == 1
    assert step_us(changed) == pytest.approx(60 + 1048.576 / 2 + 2 + 10, abs=2)


def test_more_workers_send_more(graph: Graph) -> None:
    times = [step_us(ddp(graph, workers=n, bandwidth_gbps=8, latency_us=0)) for n in (2, 4)]
    assert times[1] - times[0] == pytest.approx((1.5 - 1) * 3 * 1048.576, abs=2)


def test_a_fast_network_is_hidden_behind_the_cpu(graph: Graph) -> None:
    assert step_us(ddp(graph, bandwidth_gbps=1e6, latency_us=0)) == 100


def test_why_it_does_not_apply(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="does not tell the sizes of the parameters"):
        ddp(graph_of(STEP))
    with pytest.raises(ChangeError, match="communicate already"):
        ddp(graph_of(COLLECTIVE))
    with pytest.raises(ChangeError, match="expected at least 2 workers"):
        ddp(graph, workers=1)
