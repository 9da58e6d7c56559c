"""Sharding where a CPU computes, as PyTorch does it over gloo: every answer by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_steps import changed, graph_of, start_us, step_us
from test_ddp import MIB, SHAPED
from test_on_cpu import FLAT, ON_CPU, calibrate

from stepscope.errors import ChangeError
from stepscope.graph import Graph, select
from stepscope.models.whatif.parts.network import Network, blocks_its_caller
from stepscope.models.whatif.parts.sharding import largest_share
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table

MS = 1048.576  # 1 MiB at a byte a nanosecond, us
FAST = "workers=2,bandwidth_gbps=8,latency_us=0"

# The first product has 2 MiB of weights, the last 1 MiB.
STEP = f"""
    main |    0 1000 | ProfilerStep#0
    main |   10  110 | ## forward ##
    main |   10   60 | aten::mm  | seq=1
    main |   60  110 | aten::bmm | seq=2
    main |  200  420 | ## backward ##
    main |  200  300 | BmmBackward0 | seq=2 fwd=1
    main |  300  310 | torch::autograd::AccumulateGrad | {SHAPED.format(MIB // 4)}
    main |  310  400 | MmBackward0  | seq=1 fwd=1
    main |  400  420 | torch::autograd::AccumulateGrad | {SHAPED.format(MIB // 2)}
    main |  500  620 | ## optimizer ##
    main |  500  600 | aten::add_
    main |  600  620 | aten::add_
"""


GATHERED = 0.75 * MS  # 1 MiB by two workers of gloo


@pytest.fixture
def graph() -> Graph:
    """The modules `first` and `last`, in a root without parameters of its own."""
    graph = graph_of(STEP, **ON_CPU)
    table = Table(MODULES, {"parent": [-1, 0, 0], "path": ["", "first", "last"]})
    module, step = np.full(len(graph), -1), graph.tasks["step"] >= 0
    start = graph.start_ns
    for number, times in ((1, [(10, 60), (310, 420)]), (2, [(60, 110), (200, 310)])):
        for begin, end in times:
            module[step & (start >= begin * 1000) & (start < end * 1000)] = number
    return replace(graph.with_tasks(module=module), trace=graph.trace.with_table(table))


def test_units_are_gathered_and_scattered_while_the_thread_waits(graph: Graph) -> None:
    result = changed(graph, f"fsdp:unit_mb=1,{FAST}")
    # Gathered twice: half of each, and a quarter of waiting for the other's announcement; scattered
    # by all-reduces of 1 and 2 MiB. Of the weight update 80 us depend on the size, of which half is
    # left.
    assert step_us(result) == pytest.approx(1000 + 2 * GATHERED * 3 + 3 * MS - 40, abs=1)
    starts = start_us(result)
    assert starts["aten::mm"] == pytest.approx(10 + GATHERED * 2, abs=1)
    assert starts["aten::bmm"] == pytest.approx(60 + GATHERED * 3, abs=1)
    # The last unit is gathered again, used, and its gradients are scattered at once.
    assert starts["reduce-scatter 1"] == pytest.approx(310 + GATHERED * 4, abs=1)
    assert starts["MmBackward0"] == pytest.approx(310 + GATHERED * 6 + MS, abs=1)


def test_what_is_no_unit_is_kept_from_forward_to_backward(graph: Graph) -> None:
    result = changed(graph, f"fsdp:unit=last,{FAST}")
    assert step_us(result) == pytest.approx(1000 + 4 * GATHERED + 3 * MS - 40, abs=1)


def test_copies_into_and_out_of_shards_take_the_loops_time() -> None:
    told = STEP.replace("aten::mm  |", 'aten::mul | Input_Dims=[[125000]] Input_type=["float"]')
    graph = graph_of(told, **ON_CPU)
    # The product of 0.5 MB reads and writes 1 MB in 50 us: 1 byte takes 1 / 20 ns, a copy 1 / 10.
    copy = MS / 10
    gathered = 2 * 3 * GATHERED + 2 * 3 * (2 * copy / 2 + 2 * copy)
    scattered = 3 * MS + 3 * (2 * copy + copy / 2)
    assert step_us(graph, f"fsdp:unit_mb=1,{FAST}") == pytest.approx(1000 + gathered + scattered - 40, abs=1)


def test_copies_take_what_they_were_calibrated_to_take(graph: Graph) -> None:
    calibrate(copies=[[1, 1_000], [3 * MIB, 3 * MIB / 2], [FLAT, FLAT]])
    plain = 1000 + 2 * 3 * GATHERED + 3 * MS - 40
    copies = (2 * 3 * 3 + 3 * 2.5) * MS / 2  # of 3 MiB in all, at 2 bytes a ns
    fsdp = f"fsdp:unit_mb=1,{FAST}"
    assert step_us(graph, fsdp) == pytest.approx(plain + copies, abs=1)
    # ddp copies each gradient to its bucket, the second once backward has ended at 500, and all of
    # them back.
    reduced = 500 + 1.5 * MS + 2 * MS
    assert step_us(graph, f"ddp:{FAST}") == pytest.approx(reduced + 1.5 * MS + 500, abs=1)
    # Measured as a whole: 5 us once, 2 a tensor and 1 us a KiB, of units of one tensor; each of two
    # operators of the weight update takes 3 us longer.
    units = [[1, 1024, 7_000], [11, 1024, 27_000], [1, MIB, 5_000 + 1.024e6], [1, 8 * MIB, 5_000 + 8.192e6]]
    calibrate(sharding={"units": units, "operator": 3_000})
    whole = 2 * (5 + 2) + 3 * 1024
    assert step_us(graph, fsdp) == pytest.approx(plain + whole + 2 * 3, abs=1)


def test_gradients_in_16_bits_are_cast_by_the_thread_that_fills_the_bucket(graph: Graph) -> None:
    casts = [[1, 40_000, 60_000], [FLAT, 40_000, 60_000]]
    calibrate(casts=casts)
    result = changed(graph, f"ddp:{FAST}", "compress")
    # Half of 1 MiB and of 2 MiB; casts of 40 us hold backward up. The last one's cast is made once
    # backward has ended, at 500 and the first one's 40 later.
    assert start_us(result)["all-reduce 0"] == pytest.approx(310 + 40, abs=1)
    assert step_us(result) == pytest.approx(
        max(310 + 40 + 0.5 * MS + 60, 500 + 40 + 40) + MS + 60 + 500, abs=1
    )
    assert result.tasks["bytes"][select(result, name="all-reduce*")].tolist() == [MIB // 2, MIB]


def test_parameters_are_broadcast_once_they_are_updated(graph: Graph) -> None:
    result = changed(graph, f"zero:stage=1,by=torch,{FAST}")
    # All-reduces of 1 MiB from 310 on and of 2 MiB; one worker has 2 MiB to update, two thirds of
    # what takes 120 us. Its broadcast, then that of the other.
    reduced = 310 + 3 * MS
    assert start_us(result)["aten::add_"] == pytest.approx(reduced, abs=1)
    assert step_us(result) == pytest.approx(reduced + 80 + 3 * MS + 380, abs=1)


def test_whole_parameters_are_dealt_out_by_size() -> None:
    assert largest_share([6, 5, 4, 3, 2], 2) == 11 / 20  # 6 + 3 + 2 and 5 + 4
    assert largest_share([1, 1, 10], 4) == 10 / 12


def test_of_two_workers_of_gloo_one_gathers_half_a_block_later() -> None:
    # Each sends 500,000 bytes at 1 byte a ns; the later one's announcement waits behind 250,000.
    two = Network(2, 8, 10, gloo=True)
    assert two.all_gather_ns(1e6) == 500e3 + 250e3 + 10e3
    assert replace(two, gloo=False).all_gather_ns(1e6) == 500e3 + 10e3
    four = replace(two, workers=4)
    assert four.all_gather_ns(1e6) == four.gather_ns(1e6)


def test_gloo_scatters_by_an_all_reduce_and_broadcasts_down_a_tree() -> None:
    gloo = Network(4, 8, 10, gloo=True)
    assert gloo.reduce_scatter_ns(1e6) == gloo.all_reduce_ns(1e6)
    assert gloo.broadcast_ns(1e6) == 2 * (1e6 + 10e3)
    nccl = replace(gloo, gloo=False)
    assert nccl.reduce_scatter_ns(1e6) == nccl.gather_ns(1e6)
    assert nccl.broadcast_ns(1e6) == 1e6 + 3 * 10e3


def test_a_thread_that_waits_needs_no_core_meanwhile(graph: Graph) -> None:
    calibrate(reducing=[[1, 1, 30_000], [FLAT, 1, 30_000]])
    shared = "shared_cores:processes=2"
    fsdp = f"fsdp:unit_mb=1,{FAST}"
    assert blocks_its_caller(changed(graph, fsdp)).sum() == 6
    assert step_us(graph, fsdp, shared) == step_us(graph, fsdp)
    # Of ZeRO's collectives the all-reduces run beside backward, the broadcast does not.
    zero = f"zero:stage=1,by=torch,{FAST}"
    reduced = changed(graph, zero)
    assert blocks_its_caller(reduced)[select(reduced, name="broadcast")].all()
    assert not blocks_its_caller(reduced)[select(reduced, name="all-reduce 0")].any()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("zero:by=torch", "expected by=deepspeed, or by=torch with stage=1; found 'torch' with"),
        ("zero:by=megatron", "expected by=deepspeed, or by=torch with stage=1; found 'megatron'"),
        ("fsdp:unit=none", "fsdp: no module with parameters matches 'none'"),
    ],
)
def test_why_it_does_not_apply(graph: Graph, text: str, reason: str) -> None:
    with pytest.raises(ChangeError, match=reason):
        changed(graph, text)


@pytest.mark.parametrize("text", ["fsdp", "zero:stage=1,by=torch"])
def test_without_a_weight_update_there_is_nothing_to_shard(text: str) -> None:
    lines = STEP.replace("## optimizer ##", "## loss ##")
    with pytest.raises(ChangeError, match="these steps have no weight update"):
        changed(graph_of(lines, **ON_CPU), text)
