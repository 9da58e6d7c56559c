"""Operations and bytes of each kernel, or operator, of a drawn step."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.roofline.operator_work import Operators, work_of_pieces
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

FLOATS = 'Input_type=["float","float","float"]'


def flops_by_name(trace: Trace) -> dict[str, float]:
    """Operations of each product, by kernel name."""
    events = trace.events
    rows = np.flatnonzero((events["kind"] >= 0) & (events["step"] >= 0))
    device = (trace["tracks"]["device"][events["track"][rows]] >= 0).any()
    pieces = work_of_pieces(trace, rows, events["duration_ns" if device else "self_ns"][rows])
    names = events.text("name").take(rows)
    return {
        str(name): float(flops)
        for name, flops, product in zip(names, pieces.flops, pieces.products, strict=True)
        if product
    }


def test_a_kernel_does_the_work_of_the_operator_that_launched_it() -> None:
    trace = annotate(
        drawn_trace(f"""
        main     |  0 60 | ProfilerStep#0
        main     | 10 30 | aten::linear | Input_Dims=[[8,4],[2,4],[2]] {FLOATS}
        main     | 12 28 | aten::addmm  | Input_Dims=[[2],[8,4],[4,2]] {FLOATS}
        main     | 14 16 | cudaLaunchKernel | corr=1
        stream 7 | 20 50 | sgemm | corr=1
    """)
    )
    assert flops_by_name(trace) == {"sgemm": 2 * 8 * 2 * 4}


def test_an_operator_around_a_product_is_not_counted_again() -> None:
    trace = annotate(
        drawn_trace(f"""
        main | 0 60  | ProfilerStep#0
        main | 10 30 | aten::linear | Input_Dims=[[8,4],[2,4],[2]] {FLOATS}
        main | 12 28 | aten::addmm  | Input_Dims=[[2],[8,4],[4,2]] {FLOATS}
        main | 32 40 | aten::matmul | Input_Dims=[[8,4],[4,2]] {FLOATS}
    """)
    )
    found = flops_by_name(trace)
    assert found == {"aten::linear": 0, "aten::addmm": 128, "aten::matmul": 128}


def test_an_operator_without_recorded_arguments_falls_back_to_its_parent() -> None:
    trace = annotate(
        drawn_trace(f"""
        main     |  0 60 | ProfilerStep#0
        main     | 10 30 | aten::matmul | Input_Dims=[[8,4],[4,2]] {FLOATS}
        main     | 12 28 | aten::mm
        main     | 14 16 | cudaLaunchKernel | corr=1
        stream 7 | 20 50 | sgemm | corr=1
    """)
    )
    assert flops_by_name(trace) == {"sgemm": 128}


def test_generated_kernels_move_the_tensors_that_they_are_given() -> None:
    trace = annotate(
        drawn_trace(f"""
        main     |  0 60 | ProfilerStep#0
        main     | 10 30 | triton_poi_fused_add_0 | Input_Dims=[[100],[100],[100]] {FLOATS}
        main     | 14 16 | cuLaunchKernel | corr=1
        stream 7 | 20 50 | triton_poi_fused_add_0 | corr=1
    """)
    )
    rows = np.flatnonzero(trace.events.text("category").mask("kernel"))
    pieces = work_of_pieces(trace, rows, trace.events["duration_ns"][rows])
    assert pieces.bytes.tolist() == [1200]
    assert pieces.products.tolist() == [False]


# PyTorch of 2021 recorded no strides: the gradient of the output has the output's shape.
OF_2021 = f"""
    main     |   0 200 | ProfilerStep#0
    main     |  10  40 | aten::conv2d | Input_Dims=[[1,8,10,10],[16,8,3,3]] {FLOATS} seq=5
    main     |  12  38 | aten::_convolution | Input_Dims=[[1,8,10,10],[16,8,3,3]] {FLOATS} seq=5
    main     |  14  16 | cudaLaunchKernel | corr=1
    main     | 100 150 | CudnnConvolutionBackward | seq=5 fwd=1
    main     | 102 148 | aten::cudnn_convolution_backward \
| Input_Dims=[[1,8,10,10],[1,16,5,5],[16,8,3,3]] {FLOATS}
    main     | 104 120 | aten::cudnn_convolution_backward_input \
| Input_Dims=[[],[1,16,5,5],[16,8,3,3]] Input_type=["","float","float"]
    main     | 106 108 | cudaLaunchKernel | corr=2
    main     | 122 140 | aten::cudnn_convolution_backward_weight
    main     | 124 126 | cudaLaunchKernel | corr=3
    stream 7 |  20  50 | scudnn_fprop | corr=1
    stream 7 | 110 130 | dgrad_engine | corr=2
    stream 7 | 130 150 | wgrad_engine | corr=3
"""


def test_a_convolution_without_strides_is_known_from_its_gradient() -> None:
    once = 2 * 16 * 25 * 72
    found = flops_by_name(annotate(drawn_trace(OF_2021)))
    assert found == {"scudnn_fprop": once, "dgrad_engine": once, "wgrad_engine": once}


def test_a_convolution_without_strides_and_gradient_is_unknown() -> None:
    forward = "".join(line for line in OF_2021.splitlines(True) if "ackward" not in line)
    trace = annotate(drawn_trace(forward))
    assert np.isnan(flops_by_name(trace)["scudnn_fprop"])


def test_arguments_that_are_not_json_are_ignored() -> None:
    trace = annotate(
        drawn_trace("""
        main | 0 60  | ProfilerStep#0
        main | 10 30 | aten::mm | Input_Dims=[[8,4],7] Input_type={"a":1}
    """)
    )
    assert np.isnan(flops_by_name(trace)["aten::mm"])


@pytest.mark.parametrize("dims", ["[[8,4],[4,2]]", "[[8,4],[4,1]]"])
def test_calls_that_differ_in_shape_are_distinguished(dims: str) -> None:
    trace = annotate(
        drawn_trace(f"""
        main | 0 60  | ProfilerStep#0
        main | 10 30 | aten::bmm | Input_Dims=[[1,8,4],[1,4,2]] {FLOATS}
        main | 32 50 | aten::mm  | Input_Dims={dims} {FLOATS}
    """)
    )
    assert flops_by_name(trace)["aten::mm"] == (128 if dims.endswith("2]]") else 64)


def test_cached_operators_are_freed_with_their_trace() -> None:
    trace = annotate(drawn_trace("main | 0 60 | ProfilerStep#0\nmain | 1 5 | aten::mm"))
    operators = weakref.ref(Operators.of(trace))
    assert Operators.of(trace) is operators()
    del trace
    gc.collect()
    assert operators() is None


def test_threads_that_ask_at_once_get_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = annotate(
        drawn_trace(f"""
        main | 0 60  | ProfilerStep#0
        main | 10 30 | aten::mm | Input_Dims=[[8,4],[4,2]] {FLOATS}
    """)
    )
    operators, rows = Operators(trace), np.arange(len(trace.events))
    asked, answered, find = Event(), Event(), Operators._lookup

    def found_late(*arguments: Any) -> Any:
        if not asked.is_set():
            asked.set()
            answered.wait(0.2)  # so that the second thread asks before there is an answer
        return find(*arguments)

    def second() -> Any:
        asked.wait()
        known = operators.known_around(rows).tolist()
        answered.set()
        return known

    monkeypatch.setattr(Operators, "_lookup", found_late)
    with ThreadPoolExecutor(2) as pool:
        later = pool.submit(second)
        first = operators.known_around(rows).tolist()
        assert later.result() == first
    assert max(first) >= 0
