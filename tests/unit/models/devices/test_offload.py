"""A CPU step on a device: its kernels, counted by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.facts.roofline.rates import known_gpus, rates_of
from stepscope.graph import Graph, build_graph, simulate
from stepscope.models.devices.device_work import (
    FAST,
    SLOW,
    TYPICAL,
    OffloadEstimate,
    find_device_work,
    offload,
)
from stepscope.testing import drawn_trace

F32 = 'Input_type=["float","float"]'
# A linear layer is one product; the copy of its bias is another kernel. Two weights are updated.
STEP = f"""
    main | 0 9000 | ProfilerStep#0
    main | 0 1000 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 1000 5000 | aten::linear | seq=1 Input_Dims=[[1024,1024],[1024,1024]] {F32}
    main | 1100 4900 | aten::addmm | seq=1 Input_Dims=[[1024],[1024,1024],[1024,1024]] Input_type=["float","float","float"]
    main | 1200 1300 | aten::copy_ | seq=1 Input_Dims=[[1024],[1024]] {F32}
    main | 6000 8000 | Optimizer.step#SGD.step
    main | 6100 6500 | aten::add_ | Input_Dims=[[1000000],[1000000]] {F32}
    main | 6600 7000 | aten::add_ | Input_Dims=[[3000000],[3000000]] {F32}
"""  # noqa: E501
A100 = rates_of("A100")
GPUS = st.sampled_from([gpu["name"] for gpu in known_gpus()])


@cache
def graph_of(text: str = STEP) -> Graph:
    return build_graph(annotate(drawn_trace(text)))


def kernels_us(graph: Graph) -> dict[str, float]:
    names = graph.tasks.text("name").take(graph.on_device)
    times = graph.tasks["duration_ns"][graph.on_device] / 1e3
    return dict(zip(map(str, names), times.tolist(), strict=True))


def step_us(graph: Graph) -> float:
    return float(simulate(graph).step_ns.mean()) / 1e3


def test_operators_become_kernels() -> None:
    assert A100 is not None
    graph = graph_of()
    known = find_device_work(graph).known
    moved = offload(graph, A100).check()
    product = 2 * 1024**3 / 19.5e12 * 1e6  # FP32 operations
    update = 3 * 4 * 4e6 / 1555e9 * 1e6  # both weights: two are read, one is written
    copy = 2 * 4 * 1024 / 1555e9 * 1e6
    assert kernels_us(moved) == pytest.approx(
        {
            "aten::copy_": (5 + 2 * copy) / known,
            "aten::addmm": (5 + 2 * product) / known,
            "aten::add_": (5 + 2 * update) / known,
        },
        abs=0.01,
    )
    # Loading takes as long as on the CPU; three launches of 10 us overlap with the kernels.
    assert step_us(moved) >= 1000 + sum(kernels_us(moved).values())


def test_convolutions_use_tf32_where_pytorch_does() -> None:
    step = f"""
        main | 0 9000 | ProfilerStep#0
        main | 100 8000 | aten::_convolution | seq=1 Input_Dims=[[8,64,64,64],[64,64,3,3],[],[],[],[],[],[],[]] Input_type=["float","float","","","","","","",""] Concrete_Inputs=["","","","[1,1]","[1,1]","[1,1]","False","[0,0]","1"]
        main | 8100 8500 | aten::mul | seq=2 Input_Dims=[[8],[8]] {F32}
    """  # noqa: E501
    operations = 2 * 8 * 64 * 64 * 64 * 64 * 9
    for name, tflops in (("A100", 156), ("V100", 15.7), ("MI300X", 163.4)):
        rates = rates_of(name)
        assert rates is not None
        graph = graph_of(step)
        known = find_device_work(graph).known
        moving = 4 * (2 * 8 * 64 * 64 * 64 + 64 * 64 * 9) / rates["bandwidth"] / 1e3
        bound = max(operations / tflops / 1e6, moving)
        found = kernels_us(offload(graph, rates))["aten::_convolution"]
        assert found == pytest.approx((5 + 2 * bound) / known, abs=0.01)


@settings(max_examples=20, deadline=None)
@given(GPUS, st.floats(1, 64), st.floats(1, 4))
def test_more_samples_never_take_less(name: str, samples: float, more: float) -> None:
    rates = rates_of(name)
    assert rates is not None
    graph = graph_of()
    few, many = (offload(graph, rates, factor) for factor in (samples, more * samples))
    assert step_us(few) <= step_us(many) + 0.01
    # The weight update does not depend on the samples.
    assert kernels_us(few)["aten::add_"] == kernels_us(many)["aten::add_"]


@settings(max_examples=20, deadline=None)
@given(GPUS)
def test_estimates_are_in_order(name: str) -> None:
    rates = rates_of(name)
    assert rates is not None
    fast, typical, slow = (step_us(offload(graph_of(), rates, 1.0, one)) for one in (FAST, TYPICAL, SLOW))
    assert fast < typical < slow


def test_many_launches_bind_the_step() -> None:
    assert A100 is not None
    small = "\n".join(
        f"main | {at} {at + 90} | aten::mul | seq={at} Input_Dims=[[8],[8]] {F32}"
        for at in range(100, 5100, 100)
    )
    graph = graph_of(f"main | 0 6000 | ProfilerStep#0\n{small}")
    moved = offload(graph, A100, 1.0, OffloadEstimate(0.0, 40_000))
    assert step_us(moved) == pytest.approx(50 * 40, rel=0.1)


def test_unknown_work_is_refused() -> None:
    assert A100 is not None
    unknown = STEP.replace("aten::addmm", "x::addmm").replace("aten::copy_", "x::copy_")
    graph = graph_of(
        unknown.replace("aten::linear", "x::linear")
        + "main | 5100 5900 | autograd::engine::evaluate_function: XBackward0 | seq=1"
    )
    with pytest.raises(ChangeError, match="of the step are not known"):
        offload(graph, A100)


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        # 4 kB of inputs account for 41 us; the rest was another program's.
        ("x::small", 'Input_Dims=[[1024]] Input_type=["float"]', 3800 / 3841),
        ("x::large", 'Input_Dims=[[1000,1000]] Input_type=["float"]', 3800 / (3800 + 980)),
        ("Torch-Compiled", "", 3800 / (3800 + 980)),
        ("ReluBackward0", "", 1.0),
    ],
)
def test_what_is_unknown_is_what_inputs_account_for(name: str, options: str, known: float) -> None:
    graph = graph_of(f"""
        main | 0 9000 | ProfilerStep#0
        main | 100 3900 | aten::mm | seq=1 Input_Dims=[[1024,1024],[1024,1024]] {F32}
        main | 4000 5000 | {name} | cat=cpu_op seq=2 {options}
        main | 8000 8000 | Optimizer.step#SGD.step
    """)
    assert find_device_work(graph).known == pytest.approx(known, rel=1e-3)


def test_the_graph_stays_valid() -> None:
    assert A100 is not None
    graph = graph_of()
    moved = offload(graph, A100)
    assert len(moved) == len(graph) + 3
    assert np.array_equal(moved.tasks["mark"][: len(graph)], graph.tasks["mark"])
