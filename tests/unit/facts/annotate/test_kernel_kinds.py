"""What device work computes."""

from __future__ import annotations

import pytest
from facts import of_events

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.device.kernel_kinds import classify_kernels, is_fused, is_of_library, kind_of
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text

# The operators of torch/csrc/distributed/c10d/Ops.cpp.
COLLECTIVES = (
    "broadcast_",
    "allreduce_",
    "allreduce_coalesced_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "reduce_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "monitored_barrier_",
    "send",
    "recv_",
    "recv_any_source_",
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_nn", "gemm"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16", "gemm"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4", "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm>(Params)", "gemm"),
        ("void implicit_convolve_sgemm<float, float, 128, 6>(int, float const*)", "convolution"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7>(int)", "convolution"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16", "convolution"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution"),
        ("cudnn_turing_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", "convolution"),
        ("turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "convolution"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_stride1", "convolution"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(Params)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)", "attention"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512>(float)", "normalization"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalization"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
            "elementwise",
        ),
        ("triton_poi_fused_add_relu_0", "elementwise"),
        # They add a bias, or take a softmax: what is multiplied are kernels of their own.
        ("triton_poi_fused_addmm_gelu_1", "elementwise"),
        ("triton_poi_fused_convolution_relu_1", "elementwise"),
        ("triton_red_fused_addmm_sum_1", "reduction"),
        ("triton_per_fused__scaled_dot_product_attention_2", "reduction"),
        # Templates multiply.
        ("triton_tem_fused_mm_5", "gemm"),
        ("triton_tem_fused__to_copy_add_mm_1", "gemm"),
        ("triton_tem_fused_convolution_relu_1", "convolution"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_red_fused_native_layer_norm_3", "normalization"),
        ("triton_per_fused_sum_1", "reduction"),
        ("max_dim_max-dtype_Long", "reduction"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)", "reduction"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 7>(float*)", "reduction"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(int)", "embedding"),
        ("void split_embedding_codegen_forward_kernel<float>(at::PackedTensorAccessor<float>)", "embedding"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)", "embedding"),
        ("void fbgemm_gpu::permute_pooled_embs_kernel<float>(float const*)", "embedding"),
        ("void bounds_check_indices_kernel<long>(int)", "embedding"),
        ("void at::native::indexFuncLargeIndex<float, int, at::native::ReduceAdd>(int)", "embedding"),
        ("void fbgemm_gpu::_offsets_range_cuda_kernel<long>(long)", "other"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<X>(int)", "optimizer"),
        ("aten::mm", "gemm"),
        ("aten::mkldnn_rnn_layer_backward", "gemm"),  # a recurrent layer: products, mostly
        ("aten::_cudnn_rnn", "gemm"),
        ("aten::convolution_backward", "convolution"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::index.Tensor", "embedding"),
        *((f"c10d::{name}", "communication") for name in COLLECTIVES),
        ("_c10d_functional::reduce_scatter_tensor", "communication"),
        ("_c10d_functional::wait_tensor", "communication"),
        ("record_param_comms", "communication"),
        # Libraries that serve language models.
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<KTraits>(Params)", "attention"),
        ("void flashinfer::norm::RMSNormKernel<8, half>(half*)", "normalization"),
        ("void flashinfer::sampling::TopPSamplingFromProbKernel<1024>(float*)", "reduction"),
        ("void flashinfer::activation::act_and_mul_kernel<half>(half*)", "elementwise"),
        ("void vllm::reshape_and_cache_flash_kernel<half>(half*)", "elementwise"),
        ("void vllm::rotary_embedding_kernel<half, true>(long*)", "elementwise"),
        ("per_token_group_quant_8bit_kernel", "elementwise"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "attention"),
        ("mla_decode_kernel", "attention"),
        ("fused_moe_kernel", "gemm"),
        ("void marlin_moe_wna16::Marlin<half, 256>(int4*)", "gemm"),
        ("turing_fp16_s884_tn_128x64", "gemm"),
        ("_lora_expand_kernel", "gemm"),
        ("moe_align_block_size_kernel", "reduction"),
        ("void moe::dev::routing::routingMainKernel<P>(P)", "reduction"),
        ("void moe::finalizeKernelVecLoad<float>(float*)", "elementwise"),
        ("aten::quantile", "other"),
        ("k_42", "other"),
    ],
)
def test_the_name_tells_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_parameters_tell_nothing() -> None:
    assert kind_of("void k_42(fbgemm_gpu::FixedDivisor, cudnn::Conv)") == "other"


def test_an_unknown_kernel_computes_what_its_operator_does() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 20 | aten::linear
            main     |  1 15 | aten::addmm
            main     |  2  4 | cudaLaunchKernel | corr=1
            main     | 20 25 | aten::mystery
            main     | 21 22 | cudaLaunchKernel | corr=2
            stream 7 | 10 20 | k_42             | corr=1
            stream 7 | 30 31 | k_43             | corr=2
        """)
    )
    found = of_events(trace, "kind")
    assert (found["k_42"], found["k_43"]) == ("gemm", "other")
    assert found["aten::addmm"] is None


def test_a_folder_tells_nothing_of_an_unknown_kernel() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 30 | stepscope.lines: /me/convnext/train.py:7 | cat=cpu_op
            main     | 20 25 | aten::mystery
            main     | 21 22 | cudaLaunchKernel | corr=2
            stream 7 | 30 31 | k_43             | corr=2
        """)
    )
    assert of_events(trace, "kind")["k_43"] == "other"


def test_elementwise_work_of_the_optimizer_is_the_optimizers() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 50 | ProfilerStep#1
            main     |  0 20 | Optimizer.step#SGD.step
            main     |  2  4 | cudaLaunchKernel | corr=1
            main     |  5  6 | cudaLaunchKernel | corr=2
            stream 7 | 10 20 | elementwise_add  | corr=1
            stream 7 | 20 21 | reduce_kernel    | corr=2
        """)
    )
    found = of_events(trace, "kind")
    assert (found["elementwise_add"], found["reduce_kernel"]) == ("optimizer", "reduction")


def test_without_a_device_operators_are_the_work() -> None:
    trace = annotate(drawn_trace("main | 0 20 | aten::addmm"))
    assert of_events(trace, "kind") == {"aten::addmm": "gemm"}


def test_a_recorded_source_line_is_no_operator() -> None:
    trace = annotate(
        drawn_trace("""
            main | 0 20 | stepscope.lines: /me/train.py:7 | cat=cpu_op
            main | 2 18 | aten::addmm
        """)
    )
    kinds = of_events(trace, "kind")
    assert kinds == {"stepscope.lines: /me/train.py:7": None, "aten::addmm": "gemm"}


def test_collectives_of_the_cpu_leave_operators_their_kinds() -> None:
    trace = annotate(
        drawn_trace("""
        main   |  0 100 | ProfilerStep#0
        main   | 10  20 | aten::mm
        worker | 30  60 | gloo:all_reduce | cat=annotation
    """)
    )
    kinds = dict(zip(trace.events.text("name"), trace.events.text("kind"), strict=True))
    assert (kinds["aten::mm"], kinds["gloo:all_reduce"]) == ("gemm", "communication")


def test_an_operator_that_communicates_without_a_device_is_no_reduction() -> None:
    trace = annotate(drawn_trace("main | 0 20 | c10d::allreduce_\nmain | 30 40 | aten::sum"))
    assert of_events(trace, "kind") == {"c10d::allreduce_": "communication", "aten::sum": "reduction"}


def test_a_convolution_that_runs_as_a_matrix_product_is_a_convolution() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 90 | ProfilerStep#1
        main     | 10 20 | aten::miopen_convolution
        main     | 12 13 | hipLaunchKernel | corr=1
        main     | 30 40 | aten::addmm
        main     | 32 33 | hipLaunchKernel | corr=2
        stream 7 | 20 30 | Cijk_Ailk_first  | corr=1
        stream 7 | 40 50 | Cijk_Ailk_second | corr=2
        """)
    )
    found = of_events(trace, "kind")
    assert found["Cijk_Ailk_first"] == "convolution"
    assert found["Cijk_Ailk_second"] == "gemm"


def test_a_lookup_in_dynamo_s_cache_is_no_embedding() -> None:
    assert kind_of("TorchDynamo Cache Lookup") == "other"
    assert kind_of("batched_embedding_lookup") == "embedding"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("optimizer", "fusedAdam fused_sgd lamb_stage_1 sgd_momentum aten::_foreach_add_"),
        (
            "elementwise",
            "concat_and_cache_mla append_paged_kv set_kv_buffer loop_add_fusion wrapped_add rope_k aten::exp",
        ),
        (
            "elementwise",
            "cat add.3 select_n bitcast_convert aten::hardswish aten::lerp dropout CatArrayBatchedCopy",
        ),
        ("attention", "sdpa mha_fwd my_attn_x paged_x linear_attn wkv flash_x flex_attention"),
        (
            "normalization",
            "batchnorm groupNorm instance_norm rms_norm bn_fw welford RowwiseMoments norm_backward",
        ),
        ("convolution", "dgrad winograd im2col igemm conv2d"),
        ("embedding", "gather scatter_x lookup tbe_x index_select unique aten::index aten::_unsafe_index"),
        (
            "gemm",
            "gemv dot.3 ragged_dot cublas_x triton_mm_3 triton_bmm_1 mul_mat aten::linear aten::_scaled_mm",
        ),
        (
            "reduction",
            "softmax amax topk max_dim cross_entropy mse_loss avg_pool cub::x cumsum sort top_p aten::var",
        ),
        ("other", "converts summary matches cache"),
    ],
)
def test_names_of_each_kind(kind: str, names: str) -> None:
    found = {name: kind_of(name) for name in names.split()}
    assert found == dict.fromkeys(found, kind)


def test_kernels_of_libraries_and_generated_ones_are_not_fused_further() -> None:
    library = [
        "vllm::act_and_mul_kernel<half>",
        "reshape_and_cache",
        "rotary_k",
        "quant_k",
        "swiglu",
        "moe::finalizeKernel",
    ]
    assert all(map(is_of_library, library))
    assert not any(map(is_of_library, ["triton_poi_0", "quantile_k", "europe", "add", "k(int rotary)"]))
    assert all(
        map(is_fused, [*library, "triton_poi_fused_add_0", "triton_red_x", "triton_per_x", "triton_for_x"])
    )
    assert not any(
        map(is_fused, ["vectorized_elementwise_kernel<4, AddFunctor>", "triton_mm_3", "xtriton_poi_0"])
    )


@pytest.mark.parametrize(
    ("name", "scope", "known", "kind"),
    [
        ("fusion.3", "jit(f)/dot_general", None, "gemm"),  # by its scope
        ("fusion.3", "jit(f)/unknown", None, "other"),
        ("loop_add_fusion", "jit(f)/reduce_sum", None, "reduction"),
        ("sgemm", "jit(f)/reduce_sum", None, "gemm"),
        ("fusion.3", None, "convolution", "convolution"),  # by its program
        ("fusion.3", None, "reduction", "reduction"),
        ("fusion.3", None, "optimizer", "other"),
        ("sgemm", None, "reduction", "reduction"),  # a product that the program does not have
        ("layer_norm", None, "gemm", "gemm"),
        ("layer_norm", None, "reduction", "normalization"),
    ],
)
def test_scopes_and_programs_tell_where_names_do_not(
    name: str, scope: str | None, known: str | None, kind: str
) -> None:
    trace = drawn_trace(f"stream 7 | 0 9 | {name} | n=1 {f'scope={scope}' if scope else ''}\nmain | 0 9 | x")
    trace = trace.with_events(kind=Text.of([known, known]))
    assert list(classify_kernels(trace).events.text("kind")) == [kind, None]


def test_the_kind_of_work_is_that_of_its_category_operator_and_stage() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0 19 | aten::convolution
        main     |  1 18 | unknown_wrapper
        main     |  2  3 | cudaLaunchKernel | corr=1
        main     |  4  5 | cudaLaunchKernel | corr=2
        main     |  6  7 | cudaLaunchKernel | corr=3
        main     | 20 29 | c10d::allreduce_
        main     | 21 22 | cudaLaunchKernel | corr=4
        stream 7 | 30 31 | k_1       | corr=1
        stream 7 | 32 33 | sgemm     | corr=2
        stream 7 | 34 35 | relu      | corr=3
        stream 7 | 36 37 | k_4       | corr=4
        stream 7 | 38 39 | Memcpy    | corr=9
        stream 7 | 40 41 | Memset    | corr=9
        stream 7 | 42 43 | reduce_k  | cat=communication
        stream 7 | 44 45 | vectorized
        stream 7 | 46 47 | k_5
        stream 7 | 48 49 | softmax
        stream 7 | 50 51 | a_range   | cat=annotation
    """)
    )
    names = trace.events.text("name")
    updates = names.mask("vectorized", "k_5", "softmax")
    trace = trace.with_events(stage=Text.of("optimizer" if one else None for one in updates))
    found = dict(zip(names, classify_kernels(trace).events.text("kind"), strict=True))
    assert {name: found[name] for name in names if found[name]} == {
        **{"k_1": "convolution", "sgemm": "convolution", "relu": "elementwise", "k_4": "other"},
        **{"Memcpy": "memcpy", "Memset": "memset", "reduce_k": "communication"},
        **{"vectorized": "optimizer", "k_5": "optimizer", "softmax": "reduction"},
    }
