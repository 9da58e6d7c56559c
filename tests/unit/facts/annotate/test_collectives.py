"""Communication beyond `nccl` in the name."""

from __future__ import annotations

import pytest
from facts import of_events

from stepscope.facts.annotate.device.collectives import (
    collective_key,
    elements,
    is_communication_call,
    is_communication_kernel,
    is_communication_wait,
    mark_communication,
)
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
        "void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<1, 0>, uint16_t, 10, true>()",
        "EpCombineInterNodeV1Kernel_bf16",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16, false>()",
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
        "StepDispatchKernel",
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


@pytest.mark.parametrize(
    ("test", "names"),
    [
        (
            is_communication_kernel,
            "nccl_x rcclKernel oneccl_x ccl::x hcclx hcom_x xccl_y eccl_k mccl_k tccl bkcl_k cncl_k flagcx_k "
            "notify_wait rdma_send sdma_reduce p2p_copy msccl nvshmem_put roc_shmem_put ishmem_put "
            "deep_ep::x "
            "deepep mooncake_x internode::x internode_x intranode_x pplx_k moe_comm moea2a a2a_send "
            "cross_device_store quick_reduce lamport_x two_shot_car user_buffers multimem_x symm_mem_x "
            "symmetric_memory put_signal_kernel ucc_x ucx_k ucp_put collective-broadcast send recv-done.1.2 "
            "all_gather reduce-scatter alltoall all_to_all sendrecv AllReduce",
        ),
        (
            is_communication_call,
            "nccl:x ucc:y c10d::x _c10d_functional::y record_param_comms symm_mem::x vllm::all_gather "
            "sgl_kernel::reduce_scatter trtllm::alltoall trtllm::moe_comm deep_ep::x uccl_ep torch_ccl::x "
            "oneccl_bindings_for_pytorch::x",
        ),
        (
            is_communication_wait,
            "c10d_functional::wait_tensor _c10d_functional::wait_tensor c10d::barrier "
            "c10d::monitored_barrier_",
        ),
    ],
)
def test_names_of_every_library_are_known(test: object, names: str) -> None:
    assert [name for name in names.split() if not test(name)] == []  # type: ignore[operator]


@pytest.mark.parametrize(
    ("test", "names"),
    [
        (
            is_communication_kernel,
            "accl_x recall_x vecclx send_x recv-done-x xnotify_wait nodewise p2p smallreduce bucx_k",
        ),
        (is_communication_call, "xc10d::x aten::all_gather vllm::norm my_torch_ccl deep_epx trtllm::mm"),
        (is_communication_wait, "xc10d::barrier c10d::barriers c10d_functional::wait_tensor_ c10d::wait"),
    ],
)
def test_names_that_only_look_alike_are_not_taken(test: object, names: str) -> None:
    assert [name for name in names.split() if test(name)] == []  # type: ignore[operator]


def test_copies_on_streams_of_tasks_communicate() -> None:
    """On streams in which tasks take more than half of the time of kernels."""
    trace = marked("""
        stream 7  |  0 10 | notify_wait
        stream 7  | 10 15 | Memcpy DtoD a
        stream 7  | 15 20 | sgemm
        stream 8  |  0  2 | notify_record
        stream 8  |  2 10 | sgemm
        stream 8  | 10 15 | Memcpy DtoD b
        stream 9  |  0  5 | notify_record
        stream 9  |  5 10 | sgemm
        stream 9  | 10 15 | Memcpy DtoD c
        stream 10 | 10 15 | Memcpy DtoD d
        stream 10 | 15 16 | Memset
    """)
    found = of_events(trace, "category")
    assert {name[-1]: kind for name, kind in found.items() if name.startswith("Memcpy")} == {
        **{"a": "communication", "b": "memcpy", "c": "memcpy", "d": "memcpy"}
    }
    assert found["Memset"] == "memset"


@pytest.mark.parametrize(
    ("of_call", "of_kernel", "size"),
    [
        ('dtype="Float" In_msg_nelems=10', "", 40),
        ('dtype="Float" Out_msg_nelems=10 In_msg_nelems=40', "", 160),
        ('dtype="BFloat16" In_msg_nelems=10', 'dtype="Float" In_msg_nelems=1', 4),  # its own come first
        ('dtype="BFloat16" In_msg_nelems=10', 'dtype="Float"', 20),
        ('dtype="Unknown" In_msg_nelems=10', "", None),
        ('dtype="Float"', "", None),
        ('dtype="Float" In_msg_nelems="7"', "", None),
        ('dtype="Float" In_msg_nelems=0', "", 0),
        ("", "bytes=9", 9),
    ],
)
def test_the_bytes_of_a_collective(of_call: str, of_kernel: str, size: int | None) -> None:
    trace = marked(f"""
        main     | 0 20 | record_param_comms      | n=1 {of_call}
        main     | 6  8 | cudaLaunchKernel        | corr=1
        stream 7 | 9 12 | ncclDevKernel_AllReduce | corr=1 {of_kernel}
        stream 7 | 13 15 | sgemm                  | dtype="Float" In_msg_nelems=3
    """)
    found = of_events(trace, "bytes")
    assert (found["ncclDevKernel_AllReduce"], found["sgemm"]) == (size, None)


@pytest.mark.parametrize(
    ("count", "found"),
    [(0, 0), (8, 8), ((1 << 48) - 1, (1 << 48) - 1), (1 << 48, -1), (-1, -1), ("8", -1), (None, -1)],
)
def test_the_elements_of_a_collective_are_a_number_that_fits(count: object, found: int) -> None:
    assert elements({"In msg nelems": count}, "In") == found
    assert elements({"In msg nelems": count}, "Out") == -1


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("ncclDevKernel_AllReduce_Sum", {"Group size": 8}, ("allreduce", "", "", "8")),
        ("nccl:all_gather", {"Process Group Name": "tp"}, ("allgather", "tp", "", "")),
        ("x", {"Collective name": "reduce_scatter_tensor"}, ("reducescattertensor", "", "", "")),
        ("ncclKernel_SendRecv", {"Process Group Ranks": [0, 1]}, ("sendrecv", "", "[0, 1]", "")),
        ("ncclKernel_Broadcast", {}, ("broadcast", "", "", "")),
        ("My_Kernel", {}, ("mykernel", "", "", "")),
        *((name, {}, (name, "", "", "")) for name in ("reduce", "gather", "scatter", "barrier")),
    ],
)
def test_collectives_of_one_kind_and_group_have_one_key(
    name: str, arguments: dict[str, object], key: tuple[str, ...]
) -> None:
    assert collective_key(name, arguments) == key


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("c10d::allreduce_", "aten::add"), "kernel"),  # the innermost operator around the launch
        (("aten::add", "c10d::allreduce_"), "communication"),
        (("c10d::allreduce_", "stepscope.lines: /a.py:3 | cat=python"), "communication"),
        (("c10d::allreduce_", "train | cat=annotation"), "kernel"),
        (("train | cat=annotation", "nccl:all_reduce | cat=annotation"), "communication"),
    ],
)
def test_the_innermost_operator_around_a_launch_counts(names: tuple[str, str], kind: str) -> None:
    trace = marked(f"""
        main     |  0 50 | {names[0]}
        main     |  5 40 | {names[1]}
        main     | 10 12 | cudaLaunchKernel | corr=1
        stream 7 | 20 30 | kernel_7         | corr=1
        stream 7 | 40 50 | kernel_8         | corr=9
    """)
    found = of_events(trace, "category")
    assert (found["kernel_7"], found["kernel_8"]) == (kind, "kernel")


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("mpi_allreduce", "annotation", "communication"),
        ("MPI_Wait", "annotation", "communication"),
        ("uct_ep_flush", "annotation", "communication"),
        ("gloo:all_reduce", "runtime", "runtime"),
        ("mpi_init", "annotation", "annotation"),
        ("ucp_worker", "annotation", "annotation"),
    ],
)
def test_host_work_that_communicates_is_an_operator_or_a_range(name: str, category: str, kind: str) -> None:
    assert of_events(marked(f"main | 0 9 | {name} | cat={category}"), "category") == {name: kind}


@pytest.mark.parametrize(("collective", "kind"), [(11, "communication"), (10, "device")])
def test_a_track_that_communicates_for_more_than_half_of_its_time(collective: int, kind: str) -> None:
    trace = marked(f"stream 7 | 0 {collective} | ncclDevKernel_AllReduce\nstream 7 | 20 30 | sgemm")
    assert [row["kind"] for row in trace["tracks"].rows()] == [kind]
