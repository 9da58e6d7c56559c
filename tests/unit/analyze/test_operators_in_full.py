"""Findings in full on operators of a CPU: slow types, layouts, attention, lookups and sorting."""

from __future__ import annotations

from typing import Any

from drawn_findings import NODE, Case, Limit, from_limit_on, in_full, repeated

JAX: dict[str, Any] = {"framework": "jax"}


def slow(type: str, us: float = 70_000, dims: str = "[[512,512],[512,512]]", name: str = "aten::mm") -> str:
    return repeated(
        f'main | 100 {100 + us} | {name} | Input_Dims={dims} Input_type=["{type}","{type}"]', 100_000
    )


CONVOLUTION = f"""
    main | 10 20 | aten::convolution | seq=1 Input_Dims=[[8,3,32,32],[16,3,3,3]]
    main | 900 910 | {NODE} ConvolutionBackward0 | seq=1 fwd=1
"""

NCHW, NHWC = "[3072,1024,32,1]", "[3072,1,96,3]"

SIZE = "[8,3,32,32]"


def copies(count: int, first: str = NCHW, second: str = NHWC, size: str = SIZE, other: str = SIZE) -> str:
    shapes = f"Input_Dims=[{size},{other}] Input_Strides=[{first},{second}]"
    lines = [f"main | {at} {at + 50} | aten::copy_ | {shapes}" for at in range(100, 100 + 60 * count, 60)]
    return repeated("\n".join([CONVOLUTION, *lines]))


def attention(us: float, middle: str = "aten::softmax", more: str = "", name: str = "aten::bmm") -> str:
    end = 200 + us
    return repeated(
        f"""
        main | 10 100 | {name} | seq=1
        main | 110 120 | aten::div | seq=2
        main | 200 {end} | {middle} | seq=3
        main | {end} {end + 20} | {name} | seq=4
        {more}
        main | 900 920 | {NODE} SoftmaxBackward0 | seq=3 fwd=1
        main | 930 940 | aten::relu
        """
    )


ONE_HOT = f"""
    main | 10 700 | stepscope.module: net
    main | 20 200 | aten::one_hot | Input_Dims=[[4,6],[]]
    main | 210 {{end}} | aten::to | Input_Dims=[[4,6,50],[],[],[],[]]
    main | 310 400 | aten::linear | Input_Dims={{product}} seq=1
    main | 410 420 | aten::sum | seq=2
    main | 430 440 | aten::one_hot | Input_Dims=[[4,7],[]]
    main | 450 460 | aten::to | Input_Dims=[[5,6,51],[],[],[],[]]
    main | 470 480 | aten::linear | Input_Dims=[[5,6,51],[8,51],[]] seq=3
    main | 730 740 | {NODE} SumBackward0 | seq=2 fwd=1
    main | 750 900 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 910 940 | Optimizer.step#SGD.step
"""

CASES = {
    "BF16": Case(
        "slow_fallback",
        slow("c10::BFloat16"),
        """
        Products in BF16 are slow on this CPU, 70 ms per step.
        It has no fast instructions for BF16; products and convolutions run at 3.83 GFLOP/s.
        -> Compute in FP32 on this CPU: without torch.autocast, or with the model and its inputs
        converted by .float().
        critical: 56.578227 of 100 ms, 43.156454 to 64.631291
        simulated, at 20 GFLOP/s in FP32
        * aten::mm × 1, 70 ms, forward
        """,
    ),
    "FP16 in JAX": Case(
        "slow_fallback",
        slow("c10::Half"),
        """
        Products in FP16 are slow on this CPU, 70 ms per step.
        It has no fast instructions for FP16; products and convolutions run at 3.83 GFLOP/s.
        -> Compute in FP32 on this CPU: without torch.autocast, or with the model and its inputs
        converted by .float().
        critical: 56.578227 of 100 ms, 43.156454 to 64.631291
        simulated, at 20 GFLOP/s in FP32
        * aten::mm × 1, 70 ms, forward
        """,
        metadata=JAX,
    ),
    "a fallback by name": Case(
        "slow_fallback",
        slow("float", name="aten::_slow_conv2d_forward", dims="null"),
        """
        aten::_slow_conv2d_forward is a slow fallback of the library, 70 ms per step.
        -> Use FP32 and a batch of more than one image; both suit a fast convolution.
        critical: 35 of 100 ms, 0 to 35
        simulated, if a fast one took half as long
        * aten::_slow_conv2d_forward × 1, 70 ms, forward
        """,
    ),
    "products of doubles": Case(
        "fp64_matmul",
        slow("double") + "\n" + slow("double", 20_000, name="aten::exp"),
        """
        Matrix products and convolutions compute in FP64, 50 ms per step.
        -> If the accuracy of FP32 is enough, convert the model and its inputs with .float().
        critical: 35 of 100 ms, 35 to 52.5
        simulated, if FP32 took half as long
        * aten::mm × 1, 70 ms, forward
        """,
    ),
    "copies to another layout": Case(
        "layout_conversions",
        copies(4),
        """
        Each step converts layouts around convolutions 4 times, 0.2 ms.
        -> Keep one layout throughout: model.to(memory_format=torch.channels_last), the same for
        the input, and layers that preserve it.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most the time of these copies
        * aten::copy_ × 4, 0.2 ms, forward
        """,
    ),
    "attention": Case(
        "unfused_attention",
        attention(100),
        """
        Attention writes its matrix of scores to memory, 0.13 ms per step.
        That is softmax and the elementwise work around it.
        -> Use F.scaled_dot_product_attention, which does not write the attention matrix to
        memory.
        warning: 0.13 of 1 ms, 0 to 0.24
        simulated, without the softmax and all around it; at most the products too
        * aten::softmax × 1, 0.1 ms, forward
        * autograd::engine::evaluate_function: SoftmaxBackward0 × 1, 0.02 ms, backward
        * aten::div × 1, 0.01 ms, forward
        """,
    ),
    "attention inside an operator": Case(
        "unfused_attention",
        attention(100, more="main | 5 890 | lib::attention"),
        """
        Attention writes its matrix of scores to memory, 0.13 ms per step.
        That is softmax and the elementwise work around it.
        -> Use F.scaled_dot_product_attention, which does not write the attention matrix to
        memory.
        warning: 0.13 of 1 ms, 0 to 0.24
        simulated, without the softmax and all around it; at most the products too
        * aten::softmax × 1, 0.1 ms, forward
        * autograd::engine::evaluate_function: SoftmaxBackward0 × 1, 0.02 ms, backward
        * aten::div × 1, 0.01 ms, forward
        """,
    ),
    "the math kernel": Case(
        "unfused_attention",
        attention(
            100, "aten::_scaled_dot_product_attention_math", "main | 210 230 | aten::dropout", "aten::relu"
        ),
        """
        Attention writes its matrix of scores to memory, 0.12 ms per step.
        That is softmax and the elementwise work around it.
        -> F.scaled_dot_product_attention falls back to its math kernel because of dropout.
        warning: 0.12 of 1 ms, 0 to 0.12
        simulated, at most: a fused kernel that computes the softmax in passing
        * aten::_scaled_dot_product_attention_math × 1, 0.1 ms, forward
        * autograd::engine::evaluate_function: SoftmaxBackward0 × 1, 0.02 ms, backward
        """,
    ),
    "one-hot rows": Case(
        "one_hot_product",
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]")),
        """
        One-hot rows are multiplied with a weight, 0.51 ms per step.
        Most is in net.
        -> Look the rows up: nn.Embedding(classes, width) in place of the Linear layer, or
        F.embedding(indices, weight.t()).
        critical: 0.51 of 1 ms, 0.357 to 0.51
        simulated, one-hot rows, their product, and its gradient
        * aten::one_hot × 1, 0.18 ms, forward net
        * autograd::engine::evaluate_function: MmBackward0 × 1, 0.15 ms, backward net
        * aten::to × 1, 0.09 ms, forward net
        * aten::linear × 1, 0.09 ms, forward net
        """,
    ),
    "sorting": Case(
        "hotspot",
        repeated("main | 10 300 | aten::sort\nmain | 310 320 | aten::lstm\nmain | 20 30 | aten::sort"),
        """
        aten::sort takes 29% of the step.
        It runs once per step.
        -> Sort fewer elements, or sort once for several steps; a mask or a running maximum may be
        enough.
        warning: 0.145 of 1 ms, 0 to 0.33
        simulated, if it took half as long
        scale:select=operator=aten::sort,factor=0.5
        * aten::sort × 1, 0.29 ms, forward
        """,
    ),
    "exponential": Case(
        "hotspot",
        repeated(
            "main | 10 610 | aten::linalg_matrix_exp\nmain | 20 420 | aten::bmm\nmain | 610 620 | aten::lstm"
        ),
        """
        aten::linalg_matrix_exp takes 60% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        critical: 0.3 of 1 ms, 0 to 0.66
        simulated, if it took half as long
        scale:select=operator=aten::linalg_matrix_exp,factor=0.5
        * aten::linalg_matrix_exp × 1, 0.6 ms, forward
        """,
    ),
}

LIMITS = {
    "12 GFLOP/s": Limit("slow_fallback", slow("c10::BFloat16", 22_370), slow("c10::BFloat16", 22_369)),
    "a fallback of 5 % of the step": Limit(
        "slow_fallback",
        slow("float", 5000, name="aten::_slow_conv2d_forward", dims="null"),
        slow("float", 4999, name="aten::_slow_conv2d_forward", dims="null"),
    ),
    "1 MFLOP": Limit(
        "slow_fallback",
        slow("c10::BFloat16", dims="[[100,50],[50,100]]"),
        slow("c10::BFloat16", dims="[[99,50],[50,100]]"),
    ),
    "doubles of 5 % of the step": Limit("fp64_matmul", slow("double", 5000), slow("double", 4999)),
    "4 copies": Limit("layout_conversions", copies(4), copies(3)),
    "copies of dense tensors": Limit("layout_conversions", copies(4), copies(4, NCHW, "[0,1,96,3]")),
    "copies from dense tensors": Limit("layout_conversions", copies(4), copies(4, "[0,1024,32,1]", NHWC)),
    "copies of one size": Limit("layout_conversions", copies(4), copies(4, other="[8,3,32,31]")),
    "copies of sizes above 1": Limit(
        "layout_conversions", copies(4), copies(4, size="[8,3,32,1]", other="[8,3,32,1]")
    ),
    "attention of 5 % of the step": Limit("unfused_attention", attention(20), attention(19)),
    "one-hot rows of 5 % of the step": Limit(
        "one_hot_product",
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]"), 10_150),
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]"), 10_250),
    ),
    "sorting for 15 % of the step": Limit(
        "hotspot", repeated("main | 10 160 | aten::sort"), repeated("main | 10 159.9 | aten::sort")
    ),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)
