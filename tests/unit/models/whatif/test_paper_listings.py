"""The algorithms of the DAYDREAM paper as a user writes them, against the built-in changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drawn_steps import V100, graph_of, step_us
from test_changes import LONG
from test_collective_changes import DDP, MS, step
from test_collective_changes import with_modules as with_gradients
from test_ddp import MIB
from test_layer_changes import STEP as LAYERS
from test_layer_changes import with_modules

from stepscope.graph import Graph, simulate
from stepscope.models.whatif import CHANGES, load_changes, parse_request

LISTINGS = load_changes(Path(__file__).parents[4] / "examples/paper_changes.py", CHANGES)
UPDATE = """
    main     |   0 60 | ProfilerStep#0
    main     |  10 58 | Optimizer.step#Adam.step
    main     |  11 12 | cudaLaunchKernel | corr=1
    main     |  30 31 | cudaLaunchKernel | corr=2
    main     |  50 51 | cudaLaunchKernel | corr=3
    stream 7 |  20 25 | lerp             | corr=1
    stream 7 |  40 45 | addcmul          | corr=2
    stream 7 |  60 95 | addcdiv          | corr=3
"""
NORMALIZED = """
    main     |   0 100 | ProfilerStep#0
    main     |  10  38 | ## forward ##
    main     |  10  16 | aten::convolution
    main     |  12  14 | cudaLaunchKernel   | corr=7
    main     |  20  26 | aten::cudnn_batch_norm
    main     |  22  24 | cudaLaunchKernel   | corr=8
    main     |  30  36 | aten::relu
    main     |  32  34 | cudaLaunchKernel   | corr=9
    main     |  40  70 | ## backward ##
    main     |  40  46 | aten::threshold_backward
    main     |  42  44 | cudaLaunchKernel   | corr=10
    main     |  50  56 | autograd::engine::evaluate_function: CudnnBatchNormBackward0
    main     |  52  54 | cudaLaunchKernel   | corr=11
    stream 7 |  22 112 | implicit_gemm      | corr=7
    stream 7 | 112 172 | bn_fw_tr           | corr=8
    stream 7 | 172 192 | elementwise_relu   | corr=9
    stream 7 | 192 212 | elementwise_back   | corr=10
    stream 7 | 212 272 | bn_bw_tr           | corr=11
"""
SECOND = ("50 80 | implicit_gemm_second   | corr=3", "80 110 | dgrad_second          | corr=4")
PARTS = """
    main     |   8  9 | cudaLaunchKernel | corr=13
    main     |  12 13 | cudaLaunchKernel | corr=14
    stream 7 |  50 70 | implicit_gemm_second | corr=3
    stream 7 |  70 80 | bias_second      | corr=13
    stream 7 |  80 100 | dgrad_second    | corr=4
    stream 7 | 100 110 | wgrad_second    | corr=14
"""
# The second convolution runs two kernels in each pass.
IN_PARTS = "\n".join(line for line in LAYERS.splitlines() if not any(one in line for one in SECOND)) + PARTS


def recording(text: str) -> Graph:
    graph = graph_of(text, devices=V100)
    return with_modules(graph) if text in (LAYERS, IN_PARTS) else graph


def gradients(first: int = 2, shared: bool = False) -> Graph:
    graph = with_gradients(graph_of(step(0, 0), devices=V100), first * MIB, MIB)
    modules = graph.trace["modules"]
    size = modules["parameter_bytes"] - [shared * MIB, 0, 0]  # the root counts once what its modules share
    return replace(graph, trace=graph.trace.with_table(modules.with_columns(parameter_bytes=size)))


@pytest.mark.parametrize(
    ("graph", "listing", "built_in"),
    [
        (recording(LONG), ["paper_amp"], ["amp"]),
        (recording(UPDATE), ["paper_fused_adam"], ["fused_optimizer"]),
        (recording(NORMALIZED), ["paper_restructured_batchnorm"], ["reconstruct_batchnorm"]),
        (
            gradients(),
            ["paper_distributed:workers=4,gbps=8,bucket_mb=1"],
            ["ddp:workers=4,bandwidth_gbps=8,latency_us=0"],
        ),
        (
            gradients(1, shared=True),
            ["paper_distributed:workers=4,gbps=8,bucket_mb=1"],
            ["ddp:workers=4,bandwidth_gbps=8,latency_us=0"],
        ),
        (
            gradients(),
            [f"paper_p3:gbps=8,slice_mb={MS / 1000}"],
            [f"p3:workers=2,bandwidth_gbps=8,latency_us=0,slice_kb={MS}"],
        ),
        (
            gradients(),
            [f"paper_p3:gbps=8,slice_mb={0.75 * MS / 1000}"],  # the last slice of each layer is smaller
            [f"p3:workers=2,bandwidth_gbps=8,latency_us=0,slice_kb={0.75 * MS}"],
        ),
        (gradients(), [DDP, "paper_blueconnect"], [DDP, "blueconnect:factors=2x2,gbps=64x8,latency_us=0"]),
        (recording(LAYERS), ["paper_metaflow:delete=body.a"], ["metaflow:delete=body.a"]),
        (
            recording(LAYERS),
            ["paper_metaflow:resize=body.b,factor=1.5"],
            ["metaflow:resize=body.b,factor=1.5"],
        ),
        (recording(LAYERS), ["paper_gist:layer=body.b,mb=0.08,gb_per_s=16"], ["gist:sparsity=0.5"]),
        (recording(IN_PARTS), ["paper_gist:layer=body.b,mb=0.08,gb_per_s=16"], ["gist:sparsity=0.5"]),
        (gradients(), [DDP, "paper_dgc:ratio=0.01"], [DDP, "dgc:ratio=0.01"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_listing_gives_what_the_built_in_change_gives(
    graph: Graph, listing: list[str], built_in: list[str]
) -> None:
    expected, found = step_us(graph, *built_in), graph
    for text in listing:
        found = parse_request(text, {**CHANGES, **LISTINGS}).apply(found)
    assert float(simulate(found).step_ns.mean()) / 1000 == pytest.approx(expected, rel=0.001, abs=2)
    assert expected != pytest.approx(step_us(graph), abs=2)  # the change does something


@pytest.mark.parametrize("text", [LAYERS, IN_PARTS])
def test_an_offloaded_map_stalls_backward_until_it_is_back(text: str) -> None:
    graph = recording(text)
    slow = parse_request("paper_vdnn:layer=body.b,mb=0.08,gb_per_s=1", LISTINGS).apply(graph)
    # As the built-in: out from 50 to 130, while the convolution runs; back to 210; then 70 of backward.
    assert float(simulate(slow).step_ns.mean()) / 1000 == pytest.approx(50 + 2 * 80 + 70, abs=2)
