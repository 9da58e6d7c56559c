"""Classify device work by its name, its scope, or the operator that launched it."""

import re
from functools import lru_cache

import numpy as np

from stepscope.base.arrays import Codes8, Mask
from stepscope.base.kernel_names import without_parameters
from stepscope.facts.annotate.jax.scopes import primitives
from stepscope.facts.annotate.links.launches import caller_of
from stepscope.facts.annotate.range_names import operators
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import DEVICE_WORK, KERNEL_KINDS, PRODUCT_KINDS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_CODE = {kind: code for code, kind in enumerate(KERNEL_KINDS)}

# Elementwise kernels of libraries: each is an operator of its own, which no compiler fuses.
_CACHE = r"(reshape|concat)_and_cache|append_?paged_?kv|set_kv_buffer"
_CUSTOM = (
    r"act_and_mul|rotary|(?<![a-z])rope(?![a-z])|quant(?!ile)|swiglu|geglu"
    r"|moe[:_].*(finalize|expandinput)"
)
_OF_LIBRARY = re.compile(f"{_CACHE}|{_CUSTOM}")

# The first match counts; kernels and operators (aten::…) share the table. Names are matched in
# lower case, which takes half the time of re.IGNORECASE.
_RULES = tuple(
    (re.compile(pattern.lower()), kind)
    for pattern, kind in (
        (
            r"^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):|^_?c10d(_functional)?::|^record_param_comms$",
            "communication",
        ),
        (r"^triton_(tem_(?!.*(conv(?!ert)|attention))|mm|bmm)", "gemm"),
        (
            r"multi_tensor_apply|fused_?(adam|sgd|lamb|adagrad)|adam|lamb_|sgd_?(momentum|update)"
            r"|_foreach_",
            "optimizer",
        ),
        (_CACHE, "elementwise"),
        (
            r"flash(?!infer)|batch_?(prefill|decode)_?with|fmha|attention|sdpa|mha_|_attn_|paged_"
            r"|(?<![a-z])(mha|mla)(?![a-z])|_fwd_(grouped_)?kernel_stage\d|delta_rule|linear_attn"
            r"|(?<![a-z])wkv",
            "attention",
        ),
        (
            r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|cudnn::bn_|bn_(fw|bw)"
            r"|miopen.*bn|welford|RowwiseMoments|GammaBeta|ComputeInternalGradients|norm_backward",
            "normalization",
        ),
        (
            r"conv(?!ert)|dgrad|wgrad|fprop|winograd|im2col|col2im|igemm|miopenSp3Asm|implicit_gemm"
            r"|[sh\d]cudnn_",
            "convolution",
        ),
        (
            r"(?<!rotary_)embedding|index_?(select|put|add|copy|func)|indexing_backward|gather|scatter"
            r"|(?<!cache )lookup|tbe_|pooled_embs"
            r"|compute_grad_weight|krn_partial|linearize_index|dense_representation|unique"
            r"|bounds_check_indices|bucketize_sparse|permute_(indices|1d|2d)"
            r"|^aten::(_unsafe_)?index(\.|$)",
            "embedding",
        ),
        (
            r"(?<!fb)gemm|gemv|^dot(_general)?(\.|$)|^ragged_dot|cutlass|cublas|nvjet|xmma|wmma|Cijk_|matmul|addmm|baddbmm|bmm|splitK"
            r"|epilogue::impl|_s(884|1688|16816|8816)(?![0-9])|marlin|fused_moe_kernel|(?<![a-z])fmoe"
            r"|moe_coop|lora_(shrink|expand)|(?<![a-z])(sgmv|bgmv|mul_mat)(?![a-z])"
            r"|^aten::(mm|linear|dot|mv|addmv|einsum|(_scaled)?(_grouped)?_mm)$"
            r"|^aten::(mkldnn_rnn_layer|_cudnn_rnn|miopen_rnn)(_backward)?$",
            "gemm",
        ),
        (
            r"triton_(red|per)_|softmax|reduce|reduction|(?<![a-z])(sum|mean|amax|argmax|norm|topk)"
            r"(?![a-z])|(?<![a-z])(max|min)_dim(?![a-z])|cross_entropy|_loss|pool|cub::|cumsum|scan|sort|std_var"
            r"|sampling|routing|histogram|moe_?align|(?<![a-z])top_?[kp](?![a-z])"
            r"|^aten::(var|std|prod|logsumexp)(_mean)?$",
            "reduction",
        ),
        (
            r"elementwise|(loop|wrapped)_\w+|vectorized|triton_poi_|pointwise|copy|fill|CatArray|(?<![a-z])cat(?![a-z])"
            r"|dropout|relu|gelu|silu|sigmoid|tanh|transpose|permute|nchwToNhwc|nhwcToNchw|tensorTransform"
            r"|FillFunctor|SubTensorOp|masked|where|threshold|distribution|triu|tril|bernoulli|random"
            r"|" + _CUSTOM + r"|nan_to_num|bucketize|zero_|(?<![a-z])(gt|ge|lt|le|eq|ne)(?![a-z])"
            r"|^(add|sub|mul|div|max|min|neg|exp|log|log1p|rsqrt|sqrt|pow|integer_pow|logistic|erf|convert|compare"
            r"|convert_element_type|broadcast(_in_dim)?|select_n?|iota|bitcast\w*|and|or|not|xor|reshape|concatenate"
            r"|pad|slice|dynamic_(update_)?slice|square|sign|abs|clamp|shift_\w+|reduce_precision)(\.|$)"
            r"|^aten::(add|sub|mul|div|pow|sqrt|exp|log|neg|abs|clamp|to|_to_copy|clone|contiguous"
            r"|uniform_|normal_|zeros|ones)"
            r"|^aten::(r(sqrt|sub)|reciprocal|square|erf|sin|cos|sign|floor|ceil|round|lerp|addc(mul|div)"
            r"|max|min|maximum|minimum|mish|softplus|hard\w+|[cs]?elu|remainder|fmod|bitwise_\w+)_?$",
            "elementwise",
        ),
    )
)
# Kernels that Inductor generates are named after all operators fused into them: such a kernel may
# add the bias of a matrix product or copy what a collective sends, but does neither itself.
GENERATED = re.compile(r"^triton_(poi|red|per|for)_")
_PRODUCT_CODES = tuple(_CODE[kind] for kind in PRODUCT_KINDS)
_FUSED_RULES = tuple(rule for rule in _RULES if rule[1] not in PRODUCT_KINDS)


def classify_kernels(trace: Trace) -> Trace:
    """Fill `kind` for device work, or for operators if a trace has no device work.

    A reader that knows the program of a compiled operation has filled its `kind`: that decides
    which operations are products, and counts for names that tell nothing.

    Elementwise and unknown kernels in the optimizer stage get the kind `optimizer`.
    """
    events = trace.events
    category = events.text("category")
    device = category.mask(*DEVICE_WORK)
    # Collectives of a job without devices run on the CPU, alongside operators.
    has_device = (device & ~category.mask("communication")).any()
    work = device if has_device else operators(events) | category.mask("communication")
    code = _by_name(events.text("name"), work)
    for kind in ("memcpy", "memset", "communication"):
        code[work & category.mask(kind)] = _CODE[kind]
    code = _by_program(events, work, _by_scope(events, work, code))
    operator = _by_operator(trace)
    unknown = device & (code == _CODE["other"])
    code[unknown] = operator[unknown]
    # MIOpen and cuDNN run some convolutions as matrix products.
    product = device & (code == _CODE["gemm"]) & (operator == _CODE["convolution"])
    code[product] = _CODE["convolution"]
    optimizer = work & events.text("stage").mask("optimizer")
    plain = (code == _CODE["elementwise"]) | (code == _CODE["other"])
    code[optimizer & plain] = _CODE["optimizer"]
    return trace.with_events(kind=Text(code.astype(np.int8), KERNEL_KINDS))


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> str:
    """The kind of a kernel or an operator by its name."""
    name = without_parameters(name).lower()
    rules = _FUSED_RULES if GENERATED.match(name) else _RULES
    return next((kind for pattern, kind in rules if pattern.search(name)), "other")


def is_of_library(name: str) -> bool:
    """Whether an elementwise kernel is a library's own operator, which no compiler fuses.

    Example:
        >>> is_of_library("vllm::act_and_mul_kernel<half>"), is_of_library("triton_poi_0")
        (True, False)
    """
    return _OF_LIBRARY.search(without_parameters(name).lower()) is not None


def is_fused(name: str) -> bool:
    """Whether no compiler fuses an elementwise kernel further: one generated it, or it is a library's.

    Example:
        >>> is_fused("triton_poi_fused_add_0"), is_fused("vectorized_elementwise_kernel<4, AddFunctor>")
        (True, False)
    """
    return bool(GENERATED.match(name)) or is_of_library(name)


def _by_name(names: Text, rows: Mask) -> Codes8:
    """The kinds of some rows by their names, -1 for all others."""
    kinds = np.full(len(rows), -1, np.int8)
    kinds[rows] = names.take(rows).compact().map(kind_of).recoded(KERNEL_KINDS).codes
    return kinds


def _by_scope(events: Table, work: Mask, code: Codes8) -> Codes8:
    """Use the kind of the scope for compiled kernels whose name is not informative."""
    found = _by_name(primitives(events.text("scope")), work)
    plain = _CODE["other"], _CODE["elementwise"]
    informative = np.isin(code, plain) & (found >= 0) & (found != _CODE["other"])
    return np.where(informative, found, code).astype(np.int8)


def _by_program(events: Table, work: Mask, code: Codes8) -> Codes8:
    """Use the kind that the operation's program gives, for products, collectives and unknown names."""
    known = events["kind"]
    vague = np.isin(code, (*_PRODUCT_CODES, _CODE["other"])) & (known != _CODE["optimizer"])
    use = work & (known >= 0) & (vague | np.isin(known, (*_PRODUCT_CODES, _CODE["communication"])))
    return np.where(use, known, code).astype(np.int8)


def _by_operator(trace: Trace) -> Codes8:
    """The kind of the innermost classified operator around the launch of each event."""
    events = trace.events
    kinds = _by_name(events.text("name"), operators(events))
    # Work launched by a collective is already classified as communication or a copy.
    classified = ~np.isin(kinds, (-1, _CODE["other"], _CODE["communication"]))
    around = inherit(events["parent"], np.where(classified, kinds, -1))
    found = np.append(around, -1)[caller_of(trace)]
    return np.where(found < 0, _CODE["other"], found).astype(np.int8)
