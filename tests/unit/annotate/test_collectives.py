"""Communication beyond `nccl` in the name."""

from __future__ import annotations

import pytest
from facts import of_events

from stepscope.annotate.collectives import mark_communication
from stepscope.annotate.launches import link_launches
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def marked(text: str) -> Trace:
    return mark_communication(link_launches(drawn_trace(text)))


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_Generic(ncclDevComm*, unsigned long)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "msccl_kernel",
        "void deep_ep::dispatch<8, false>()",
        "two_shot_all_reduce_kernel",
        "all-reduce.1",
        "collective-permute-start",
    ],
)
def test_kernels_that_say_so_communicate(name: str) -> None:
    assert of_events(marked(f"stream 7 | 0 9 | {name}"), "category") == {name: "communication"}


@pytest.mark.parametrize(
    "name", ["void reduce_kernel<512, 1>()", "sgemm", "void gather_kernel()", "scatter_add"]
)
def test_kernels_that_only_sound_like_it_compute(name: str) -> None:
    assert of_events(marked(f"stream 7 | 0 9 | {name}"), "category") == {name: "kernel"}


def test_a_kernel_of_any_name_communicates_if_a_collective_launched_it() -> None:
    trace = marked("""
        main     |  0 20 | c10d::allreduce_
        main     |  5 15 | my_all_to_some      | cat=cpu_op
        main     |  6  8 | cudaLaunchKernel    | corr=1
        main     | 30 40 | aten::add
        main     | 31 32 | cudaLaunchKernel    | corr=2
        main     | 50 60 | record_param_comms
        main     | 51 52 | cudaLaunchKernel    | corr=3
        stream 7 | 40 41 | inside_my_operator  | corr=1
        stream 7 | 42 43 | add                 | corr=2
        stream 7 | 60 70 | k42                 | corr=3
    """)
    categories = of_events(trace, "category")
    assert categories["k42"] == "communication"
    assert categories["add"] == "kernel"
    assert categories["inside_my_operator"] == "kernel"


def test_copies_inside_a_collective_stay_copies() -> None:
    trace = marked("""
        main     | 0 20 | c10d::allgather_
        main     | 6  8 | cudaMemcpyAsync  | corr=1
        stream 7 | 9 12 | Memcpy DtoD      | corr=1
    """)
    assert of_events(trace, "category")["Memcpy DtoD"] == "memcpy"


def test_a_stream_that_mostly_communicates_is_a_communication_track() -> None:
    trace = marked("""
        stream 7  |  0 50 | sgemm
        stream 7  | 50 60 | ncclDevKernel_AllReduce
        stream 20 |  0 30 | ncclDevKernel_Broadcast
        stream 20 | 30 40 | copy_kernel
    """)
    kinds = {row["name"]: row["kind"] for row in trace["tracks"].rows()}
    assert kinds == {"stream 7": "device", "stream 20": "communication"}


def test_a_host_thread_of_collectives_is_a_communication_track_of_the_host() -> None:
    trace = marked("""
        main   | 0 90 | aten::mm
        worker | 5 40 | gloo:all_reduce | cat=annotation
    """)
    assert of_events(trace, "category")["gloo:all_reduce"] == "communication"
    kinds = {row["name"]: (row["kind"], row["device"]) for row in trace["tracks"].rows()}
    assert kinds == {"main": ("cpu", None), "worker": ("communication", None)}


def test_bytes_come_from_the_recorded_element_counts() -> None:
    trace = marked("""
        main     | 0 20 | record_param_comms      | dtype="Float" In_msg_nelems=10 Out_msg_nelems=40
        main     | 6  8 | cudaLaunchKernel        | corr=1
        stream 7 | 9 12 | ncclDevKernel_AllReduce | corr=1
    """)
    assert of_events(trace, "bytes")["ncclDevKernel_AllReduce"] == 160
