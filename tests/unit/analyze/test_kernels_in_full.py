"""Findings in full on kernels: hot, small, slow, of odd sizes and of wide types."""

from __future__ import annotations

from drawn_findings import DEVICE, JAX, WAIT, Case, Limit, from_limit_on, in_full, repeated, work


def chain(count: int, us: float, every: float = 0, name: str = "vectorized_elementwise_kernel") -> str:
    """Steps that wait for a product, and for kernels in a row after it."""
    at = 990 - count * (us + every)
    rows = [work(1, "volta_gemm", 10, at)]
    for number in range(count):
        call = 12 + 2 * number
        rows += [
            f"main | {call} {call + 1.4} | aten::add",
            f"main | {call + 0.1} {call + 1} | cudaLaunchKernel | corr={10 + number}",
            f"stream 7 | {at} {at + us} | {name} | corr={10 + number}",
        ]
        at += us + every
    return repeated("\n".join(rows) + WAIT)


SOFTMAX = work(1, "volta_gemm", 20, 690) + work(2, "cunn_SoftMaxForward", 690, 990) + WAIT


def hot(us: float, name: str = "sort_kernel", operator: str = "aten::mm") -> str:
    """A kernel beside a product, in a step of 1 ms that the device fills."""
    parts = work(1, "volta_gemm", 20, 990 - us), work(2, name, 990 - us, 990, operator)
    return repeated("".join(parts) + WAIT)


def layouts(count: int, kernel: str = "cudnn::ops::nchwToNhwcKernel") -> str:
    parts = [work(n + 1, kernel, 100 + 20 * n, 110 + 20 * n, "aten::cudnn_convolution") for n in range(count)]
    return repeated("".join(parts) + work(count + 1, "volta_s884cudnn_conv", 200, 990) + WAIT)


PRODUCT = 'Input_Dims={dims} Input_type=["{kind}","{kind}"]'


def product(
    dims: str,
    kind: str,
    kernel: str,
    us: float = 970,
    operator: str = "aten::mm",
    rest: float = 0,
    grid: str = "",
) -> str:
    """A product of so many us, and a kernel of no product after it."""
    arguments = PRODUCT.format(dims=dims, kind=kind)
    other = work(2, "sort_kernel", 20 + us, 20 + us + rest, "aten::sort") if rest else ""
    return repeated(work(1, kernel, 20, 20 + us, operator, arguments, grid) + other + WAIT)


FP32 = "ampere_sgemm_128x64_nn"

SQUARE = "[[512,512],[512,512]]"

ONE_BY_ONE = """
    main     |   10  {first} | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |   12   13 | cudaLaunchKernel | corr=1
    stream 7 |   20  {busy} | gemv_kernel | corr=1
    main     |  900  910 | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |  902  903 | cudaLaunchKernel | corr=2
    stream 7 |  910  1000 | gemv_kernel | corr=2
"""

LARGE = "[[3072,3072],[3072,3072]]"

CASES = {
    "a softmax": Case(
        "hotspot",
        repeated(SOFTMAX),
        """
        cunn_SoftMaxForward takes 30% of the step.
        It runs once per step.
        -> In attention use F.scaled_dot_product_attention, which does not write the softmax to
        memory; in a loss use F.cross_entropy.
        warning: 0.15 of 1 ms, 0 to 0.3
        simulated, if it took half as long
        scale:select=name=cunn_SoftMaxForward,factor=0.5
        * cunn_SoftMaxForward × 1, 0.3 ms, forward
        """,
    ),
    "a softmax in JAX": Case(
        "hotspot",
        repeated(SOFTMAX),
        """
        cunn_SoftMaxForward takes 30% of the step.
        It runs once per step.
        -> In attention use jax.nn.dot_product_attention, which need not write the softmax to
        memory; in a loss use optax.softmax_cross_entropy_with_integer_labels.
        warning: 0.15 of 1 ms, 0 to 0.3
        simulated, if it took half as long
        scale:select=name=cunn_SoftMaxForward,factor=0.5
        * cunn_SoftMaxForward × 1, 0.3 ms, forward
        """,
        metadata=JAX,
    ),
    "four hot kernels": Case(
        "hotspot",
        repeated(
            "".join(
                work(n + 1, f"{name}_kernel", begin, end, "aten::own")
                for n, (name, begin, end) in enumerate(
                    zip("abcd", (10, 210, 430, 720), (210, 430, 720, 990), strict=True)
                )
            )
            + WAIT
        ),
        """
        c_kernel takes 29% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.145 of 1 ms, 0 to 0.29
        simulated, if it took half as long
        scale:select=name=c_kernel,factor=0.5
        * c_kernel × 1, 0.29 ms, forward
        d_kernel takes 27% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.135 of 1 ms, 0 to 0.27
        simulated, if it took half as long
        scale:select=name=d_kernel,factor=0.5
        * d_kernel × 1, 0.27 ms, forward
        b_kernel takes 22% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.11 of 1 ms, 0 to 0.22
        simulated, if it took half as long
        scale:select=name=b_kernel,factor=0.5
        * b_kernel × 1, 0.22 ms, forward
        """,
    ),
    "a chain of small kernels": Case(
        "kernel_fusion",
        chain(20, 9),
        """
        20 small elementwise kernels per step, 9 µs each.
        They run in 1 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.171 of 1 ms, 0 to 0.171594059
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 20, 0.18 ms, forward
        """,
    ),
    "a chain of small kernels in JAX": Case(
        "kernel_fusion",
        chain(20, 9),
        """
        20 small elementwise kernels per step, 9 µs each.
        They run in 1 chains.
        -> XLA fuses within one program: put the whole step under one jax.jit.
        warning: 0.171 of 1 ms, 0 to 0.171594059
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 20, 0.18 ms, forward
        """,
        metadata=JAX,
    ),
    "a chain of long kernels": Case(
        "kernel_fusion",
        chain(3, 40),
        """
        Chains of elementwise kernels take 0.12 ms per step (12%).
        Each of 3 kernels reads and writes its whole tensor.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.08 of 1 ms, 0 to 0.0802779222
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 3, 0.12 ms, forward
        """,
    ),
    "layouts": Case(
        "layout_conversions",
        layouts(4),
        """
        Each step converts layouts around convolutions 4 times, 0.04 ms.
        -> Keep one layout throughout: model.to(memory_format=torch.channels_last), the same for
        the input, and layers that preserve it.
        info: 0.04 of 1 ms, 0.0208 to 0.044
        simulated
        scale:select=name=cudnn::ops::nchwToNhwcKernel,factor=0
        * cudnn::ops::nchwToNhwcKernel × 4, 0.04 ms, forward
        """,
    ),
    "layouts in JAX": Case(
        "layout_conversions",
        layouts(4),
        """
        Each step converts layouts around convolutions 4 times, 0.04 ms.
        -> Keep one layout throughout: NHWC for images and in dimension_numbers of convolutions,
        without jnp.transpose between layers.
        info: 0.04 of 1 ms, 0.0208 to 0.044
        simulated
        scale:select=name=cudnn::ops::nchwToNhwcKernel,factor=0
        * cudnn::ops::nchwToNhwcKernel × 4, 0.04 ms, forward
        """,
        metadata=JAX,
    ),
    "a slow product": Case(
        "low_utilization",
        product("[[512,520],[520,512]]", "c10::Half", "ampere_s16816gemm"),
        """
        ampere_s16816gemm reaches 0% of the roofline, 0.97 ms per step.
        Its shape or layout suits no fast kernel.
        -> Use dimensions that are multiples of 64 and contiguous inputs; keep one layout
        (channels_last for convolutions).
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a slow large product": Case(
        "low_utilization",
        product(LARGE, "c10::Half", "ampere_s16816gemm"),
        """
        ampere_s16816gemm reaches 19% of the roofline, 0.97 ms per step.
        Nothing recorded explains it: its sizes are multiples of 64.
        -> Try another implementation: a newer library, or another backend of attention.
        critical: 0.660267 of 1 ms, 0 to 0.660267
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a product of few blocks": Case(
        "low_utilization",
        product(LARGE, "c10::Half", "ampere_s16816gemm", grid="grid=[2,27,1]"),
        """
        ampere_s16816gemm reaches 19% of the roofline, 0.97 ms per step.
        Its 54 thread blocks leave most of the 108 multiprocessors idle.
        -> Use a larger batch, or combine several small products into one (torch.bmm, a wider
        layer).
        critical: 0.660267 of 1 ms, 0 to 0.660267
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a product that moves bytes": Case(
        "low_utilization",
        product("[[1,4096],[4096,4096]]", "c10::Half", "ampere_gemv"),
        """
        ampere_gemv reaches 2% of the roofline, 0.97 ms per step.
        It moves more bytes than its arithmetic can hide.
        -> Use a larger batch or wider layers, so that weights are read for more rows at a time.
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if it reached 60% of the roofline
        * ampere_gemv × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "odd sizes of a large product": Case(
        "odd_shapes",
        product("[[3072,3001],[3001,3072]]", "c10::Half", "ampere_s16816gemm"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 3001; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.60691 of 1 ms, 0 to 0.60691
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "odd sizes": Case(
        "odd_shapes",
        product("[[512,17],[17,50257]]", "c10::Half", "ampere_s16816gemm"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 17, 50257; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "odd sizes on an unknown device": Case(
        "odd_shapes",
        product("[[512,17],[17,50257]]", "c10::Half", "ampere_gemm_align1"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 17, 50257; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.485 of 1 ms, 0 to 0.485
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_gemm_align1 × 1, 0.97 ms, forward
        """,
    ),
    "products in FP32": Case(
        "fp32_matmul",
        product(SQUARE, "float", FP32),
        """
        1 kernels per step (0.97 ms) compute in FP32, without tensor cores.
        They are matrix products or convolutions on a device that has tensor cores.
        -> Use torch.set_float32_matmul_precision('high') for TF32, or torch.autocast with
        bfloat16.
        critical: 0.646667 of 1 ms, 0.41805 to 0.9043
        what-if amp
        amp
        * ampere_sgemm_128x64_nn × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "products in FP32 of JAX": Case(
        "fp32_matmul",
        product(SQUARE, "float", FP32),
        """
        1 kernels per step (0.97 ms) compute in FP32, without tensor cores.
        They are matrix products or convolutions on a device that has tensor cores.
        -> Use jax.config.update('jax_default_matmul_precision', 'tensorfloat32'), or compute in
        jnp.bfloat16.
        critical: 0.646667 of 1 ms, 0.41805 to 0.9043
        what-if amp
        amp
        * ampere_sgemm_128x64_nn × 1, 0.97 ms, forward
        """,
        metadata=JAX,
    ),
    "products in FP32 and no operators": Case(
        "fp32_matmul",
        repeated(f"main | 10 12 | cudaLaunchKernel | corr=1\nstream 7 | 20 990 | {FP32} | corr=1"),
        metadata=DEVICE,
    ),
    "products in FP64": Case(
        "fp64_matmul",
        product(SQUARE, "double", "some_gemm_kernel", 600, rest=370),
        """
        Matrix products and convolutions compute in FP64, 0.6 ms per step.
        -> If the accuracy of FP32 is enough, convert the model and its inputs with .float().
        critical: 0.3 of 1 ms, 0.3 to 0.596
        simulated, if FP32 took half as long
        * some_gemm_kernel × 1, 0.6 ms, forward
        """,
        metadata=DEVICE,
    ),
    "products in FP64 by name": Case(
        "fp64_matmul",
        product(SQUARE, "", "ampere_dgemm", 600, rest=370),
        """
        Matrix products and convolutions compute in FP64, 0.6 ms per step.
        -> If the accuracy of FP32 is enough, leave jax_enable_x64 off, or convert parameters and
        inputs with .astype(jnp.float32).
        critical: 0.485 of 1 ms, 0.3 to 0.89
        simulated, if FP32 took half as long
        * ampere_dgemm × 1, 0.6 ms, forward
        """,
        metadata=JAX,
    ),
    "a small batch": Case(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=100)),
        """
        Batches have 8 rows; 83% of the step is fixed overhead.
        -> Use larger batches, or pack several samples into one.
        critical: 0.83 of 1 ms, 0.415 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 2, 0.1 ms, forward
        """,
    ),
}

LIMITS = {
    "a kernel of 15 % of the step": Limit("hotspot", hot(150), hot(149.9)),
    "20 small kernels": Limit("kernel_fusion", chain(20, 9), chain(19, 9)),
    "small kernels below 10 us": Limit("kernel_fusion", chain(20, 9.999, 2), chain(5, 10)),
    "chains of 3": Limit("kernel_fusion", chain(3, 60), chain(2, 90)),
    "chains of 10 % of the step": Limit("kernel_fusion", chain(4, 25), chain(4, 24.99)),
    "4 conversions": Limit("layout_conversions", layouts(4), layouts(3)),
    "FP32 of 5 % of the step": Limit(
        "fp32_matmul",
        product(SQUARE, "float", FP32, 50, rest=920),
        product(SQUARE, "float", FP32, 49.9, rest=920),
        DEVICE,
    ),
    "FP64 of 5 % of the step": Limit(
        "fp64_matmul",
        product(SQUARE, "double", "gemm", 50, rest=920),
        product(SQUARE, "double", "gemm", 49.9, rest=920),
        DEVICE,
    ),
    "sizes of 16": Limit(
        "odd_shapes",
        product("[[512,17],[17,512]]", "c10::BFloat16", "ampere_gemm_align1"),
        product("[[512,15],[15,512]]", "c10::BFloat16", "ampere_gemm_align1"),
    ),
    "8 rows": Limit(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=100)),
        repeated(ONE_BY_ONE.format(first=100, rows=9, busy=100)),
    ),
    "idle for 30 % of the step": Limit(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=630)),
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=631)),
    ),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)
