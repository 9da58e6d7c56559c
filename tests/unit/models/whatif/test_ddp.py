"""Distributed data parallel on a step with two modules, the all-reduces' times by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_steps import graph_of, start_us, step_us
from test_changes import COLLECTIVE

from stepscope.errors import ChangeError
from stepscope.graph import Graph, select
from stepscope.models.whatif import CHANGES
from stepscope.models.whatif.parts.gradients import Gradients, buckets_of, find_gradients, shared_once
from stepscope.models.whatif.parts.network import Network
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table

MIB = 1 << 20
ddp = CHANGES["ddp"].apply
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
    table = Table(
        MODULES,
        {"parent": [-1, 0, 0], "path": ["", "first", "last"], "parameter_bytes": [first + last, first, last]},
    )
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


def test_a_parameter_that_modules_share_has_one_gradient(graph: Graph) -> None:
    """As GPT-2's embedding and head: the root has the bytes of one. It is ready last with the first."""
    columns = {"parent": [-1, 0, 0], "path": ["", "first", "last"], "parameter_bytes": [MIB] * 3}
    tied = replace(graph, trace=graph.trace.with_table(Table(MODULES, columns)))
    found = find_gradients(tied, "ddp")
    assert (found.module.tolist(), found.bytes.tolist()) == ([1], [MIB])
    changed = ddp(tied, bandwidth_gbps=8, latency_us=1)
    assert step_us(changed) == pytest.approx(60 + 1048.576 + 2 + 10, abs=2)


@pytest.mark.parametrize("number", range(30))
def test_of_modules_that_share_parameters_the_last_that_is_ready_has_them(number: int) -> None:
    """Trees of modules with bytes of their own; two or three share a parameter, at times beside a bias."""
    dice = random.Random(number)
    parent = [-1] + [dice.randrange(place) for place in range(1, 12)]
    leaves = [place for place in range(12) if place not in parent]
    shares = dice.sample(leaves, min(dice.choice([2, 3]), len(leaves)))
    own = [1000 + place if place in leaves else 0 for place in range(12)]
    ready = dice.sample(range(100), 12)
    bias = {place: dice.choice([0, 7]) for place in shares[1:]}
    expected = [bias.get(place, 0) if place in shares else size for place, size in enumerate(own)]
    expected[max(shares, key=ready.__getitem__)] += 500

    def below(place: int) -> tuple[int, bool]:
        """The bytes of a module as recorded, without the shared parameter, and whether that is in it."""
        inside = [below(child) for child in range(12) if parent[child] == place]
        mine = bias.get(place, 0) if place in shares else own[place]
        return mine + sum(size for size, _ in inside), place in shares or any(has for _, has in inside)

    whole = [size + 500 * has for size, has in map(below, range(12))]
    recorded = [whole[place] - sum(whole[n] for n in range(12) if parent[n] == place) for place in range(12)]
    found = shared_once(np.array(parent, np.int32), np.array(recorded), np.arange(12), np.array(ready))
    assert np.maximum(found, 0).tolist() == expected


def test_more_workers_send_more(graph: Graph) -> None:
    times = [step_us(ddp(graph, workers=n, bandwidth_gbps=8, latency_us=0)) for n in (2, 4)]
    assert times[1] - times[0] == pytest.approx((1.5 - 1) * 3 * 1048.576, abs=2)


def test_a_fast_network_is_hidden_behind_the_cpu(graph: Graph) -> None:
    assert step_us(ddp(graph, bandwidth_gbps=1e6, latency_us=0)) == 100


def test_why_it_does_not_apply(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="neither the shapes of gradients nor the sizes"):
        ddp(graph_of(STEP))
    with pytest.raises(ChangeError, match="communicate already"):
        ddp(graph_of(COLLECTIVE))
    with pytest.raises(ChangeError, match="expected at least 2 workers"):
        ddp(graph, workers=1)


ACCUMULATED = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  42 | ## backward ##
    main     | 10  12 | cudaLaunchKernel | corr=7
    main     | 14  15 | torch::autograd::AccumulateGrad | {last}
    main     | 20  22 | cudaLaunchKernel | corr=8
    main     | 30  31 | torch::autograd::AccumulateGrad | {first}
    main     | 50  60 | ## optimizer ##
    main     | 52  54 | cudaLaunchKernel | corr=9
    stream 7 | 20  40 | sgemm_last       | corr=7
    stream 7 | 40  60 | sgemm_first      | corr=8
    stream 7 | 62  72 | adam             | corr=9
"""
SHAPED = 'Input_Dims=[[{}]] Input_type=["float"]'


def test_gradients_are_those_that_autograd_accumulates() -> None:
    # 262,144 floats are 1 MiB, ready after the last product launched before: at 40 and at 60.
    graph = graph_of(ACCUMULATED.format(last=SHAPED.format(1 << 18), first=SHAPED.format(1 << 19)))
    found = find_gradients(graph, "ddp")
    assert found.bytes.tolist() == [MIB, 2 * MIB]
    assert [graph.tasks.text("name")[int(task)] for task in found.ready] == ["sgemm_last", "sgemm_first"]
    changed = ddp(graph, workers=2, bandwidth_gbps=8, latency_us=1)
    assert step_us(changed) == pytest.approx(40 + (1048.576 + 2) + (2 * 1048.576 + 2) + 10, abs=2)


@pytest.mark.parametrize("between", ["optimizer", "forward"])
def test_each_backward_pass_waits_for_its_own_gradients(between: str) -> None:
    """Two updates in a step, as of a GAN; where gradients are accumulated instead, one."""
    graph = graph_of(f"""
        main     |  0 200 | ProfilerStep#0
        main     | 10  30 | ## backward ##
        main     | 10  12 | cudaLaunchKernel | corr=1
        main     | 14  15 | torch::autograd::AccumulateGrad | {SHAPED.format(1 << 18)}
        main     | 40  50 | ## {between} ##
        main     | 42  44 | cudaLaunchKernel | corr=2
        main     | 60  80 | ## backward ##
        main     | 60  62 | cudaLaunchKernel | corr=3
        main     | 64  65 | torch::autograd::AccumulateGrad | {SHAPED.format(1 << 18)}
        main     | 90 100 | ## optimizer ##
        main     | 92  94 | cudaLaunchKernel | corr=4
        stream 7 | 20  40 | sgemm_first      | corr=1
        stream 7 | 50  60 | between          | corr=2
        stream 7 | 70  90 | sgemm_second     | corr=3
        stream 7 | 100 110 | adam            | corr=4
    """)
    starts = start_us(ddp(graph, workers=2, bandwidth_gbps=8, latency_us=0))
    sent = 1048.576
    waits = between == "optimizer"
    assert starts["between"] == pytest.approx(40 + sent if waits else 50)
    assert starts["adam"] == pytest.approx(40 + 2 * sent + waits * (10 + 20), abs=0.01)


def test_a_bucket_is_full_once_it_has_reached_its_cap(graph: Graph) -> None:
    sizes = Gradients(
        *(
            np.array(column)
            for column in ([0] * 5, [MIB // 2, MIB, 3 * MIB, MIB, MIB], *[[0] * 5] * 4, [0, 0, 0, 0, 1])
        )
    )
    assert buckets_of(sizes, 3 * MIB).tolist() == [0, 0, 0, 1, 2]
    assert buckets_of(sizes, 25 * MIB).tolist() == [0, 0, 1, 1, 2]  # unless it is given, 1 for the first


def test_on_the_cpu_gradients_are_copied_to_buckets_and_back() -> None:
    graph = graph_of("""
        main |   0 100 | ProfilerStep#0
        main |  10  60 | ## backward ##
        main |  10  20 | aten::mul | Input_Dims=[[1000]] Input_type=["float"]
        main |  30  40 | torch::autograd::AccumulateGrad | Input_Dims=[[2000]] Input_type=["float"]
        main |  70  90 | ## optimizer ##
    """)
    # The product reads and writes 4,000 bytes in 10 us; 8,000 bytes are read and written in 20.
    changed = ddp(graph, workers=2, bandwidth_gbps=8, latency_us=1)
    # The all-reduce takes 8 + 2 us and begins with the end of the copy, at 60. Backward then ends
    # at 80, and the CPU goes on, once copies back (20) are done.
    assert step_us(graph) == 100
    assert step_us(changed) == 100 + 20 + 20


def test_time_of_all_reduces_on_paper() -> None:
    ring = Network(4, 8, 10)
    # 3/4 of 1,000,000 bytes twice at 1 byte a ns, 6 messages of 10 us.
    assert ring.all_reduce_ns(1e6) == 1.5e6 + 60e3
    assert ring.gather_ns(1e6) == 0.75e6 + 30e3
    # Two nodes of two: of 6 messages 2 go between nodes; the slower link counts.
    nodes = Network(4, 8, 10, 2, 80, 1)
    assert nodes.all_reduce_ns(1e6) == 1.5e6 + 2 * 10e3 + 4 * 1e3
    assert replace(nodes, per_node=4).all_reduce_ns(1e6) == 1.5e5 + 6e3
    # Up and down a tree: every byte twice, one message in the node and log2(2) between nodes.
    assert replace(nodes, algorithm="tree").all_reduce_ns(1e6) == 2e6 + 2 * (1e3 + 10e3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"workers": 4, "per_node": 3}, "a multiple of per_node; found 4 and 3"),
        ({"bandwidth_gbps": 0}, r"bandwidths above 0 .*; found \(0, 100.0\) Gbit/s"),
        ({"algorithm": "star"}, "expected algorithm=ring or tree, found 'star'"),
    ],
)
def test_a_network_that_cannot_be_is_refused(graph: Graph, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ChangeError, match=message):
        ddp(graph, **parameters)
