"""Communication beyond `nccl` in the name."""

from __future__ import annotations

import pytest
from facts import of_events

from stepscope.facts.annotate.device.collectives import mark_communication
from stepscope.facts.annotate.links.launches import link_launches
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
        "void deep_ep::internode::dispatch<false, 8, false, 8192, 5120>(int4*, float*)",
        "void internode::combine<false, 4, __nv_bfloat16, 8>(int4*, float*)",
        "void internode_ll::dispatch<true, false, 7168>(void*, float*)",
        "void internode::notify_dispatch<false, 4>(int const*, int*)",
        "mscclpp::allreduce7",
        "nvshmemi_transfer_rma_nbi",
        "void quickreduce::allreduce_prototype_twoshot<half>(half*)",
        "void sglang::cross_device_reduce_1stage<half, 8>(half*)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>()",
        "lamport_style_one_shot_all_reduce_norm_kernel",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs",
        "multimem_all_reduce_kernel",
        "moeCommKernel",
        "hcom_allReduce__123_0",
        "void ccl::reduce_kernel<float>()",
    ],
)
def test_kernels_that_say_so_communicate(name: str) -> None:
    assert of_events(marked(f"stream 7 | 0 9 | {name}"), "category") == {name: "communication"}


@pytest.mark.parametrize(
    "name",
    [
        "void reduce_kernel<512, 1>()",
        "sgemm",
        "void gather_kernel()",
        "scatter_add",
        "flash_fwd_splitkv_combine_kernel",
        "dispatch_table_kernel",
        "nodewise_kernel",
        "small_reduce_kernel",
        "SmallGatherKernel",
        "triton_poi_fused_all_reduce_0",  # Inductor's copy of what it sends
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
    ],
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


def test_a_kernel_with_process_group_arguments_communicates_and_so_do_all_of_its_name() -> None:
    found = of_events(
        marked("""
            stream 7 |  0  9 | k_19 | Process_Group_Name=0
            stream 7 | 10 19 | k_20 | grid=1
        """),
        "category",
    )
    assert found == {"k_19": "communication", "k_20": "kernel"}


@pytest.mark.parametrize("around", ["dispatch(F)", "moe_combine", "attn(F)"])
def test_an_exchange_of_experts_communicates_in_a_range_that_says_so(around: str) -> None:
    trace = marked(f"""
        main     |  0 50 | {around}         | cat=annotation
        main     | 10 12 | cudaLaunchKernel | corr=1
        stream 7 | 20 30 | ep_dispatch_v2   | corr=1
    """)
    expected = "kernel" if around == "attn(F)" else "communication"
    assert of_events(trace, "category")["ep_dispatch_v2"] == expected


@pytest.mark.parametrize(
    "call", ["vllm::all_reduce", "_C_custom_ar::all_reduce", "trtllm::moe_comm", "symm_mem::one_shot"]
)
def test_kernels_of_a_serving_library_s_collectives_communicate(call: str) -> None:
    trace = marked(f"""
        main     |  0 50 | {call}
        main     | 10 12 | cudaLaunchKernel | corr=1
        stream 7 | 20 30 | kernel_7         | corr=1
    """)
    assert of_events(trace, "category")["kernel_7"] == "communication"


def test_unknown_kernels_on_a_stream_named_for_communication_communicate() -> None:
    trace = marked("""
        stream 7 comm  |  0  9 | k_19
        stream 7 comm  | 10 19 | sgemm
        stream 8 other |  0  9 | k_20
    """)
    found = of_events(trace, "category")
    assert found == {"k_19": "communication", "sgemm": "kernel", "k_20": "kernel"}


@pytest.mark.parametrize("name", ["MPI_Allreduce", "ucp_worker_progress", "gloo:all_reduce"])
def test_host_threads_communicate_by_mpi_and_ucx(name: str) -> None:
    found = of_events(marked(f"main | 0 9 | {name} | cat=annotation"), "category")
    assert found == {name: "communication"}
