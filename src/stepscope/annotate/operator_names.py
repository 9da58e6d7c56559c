"""Which operators a leaf module runs, told by the name of its class: a table, and two rules.

A class that the table does not know runs, if anything, the operator that is called like itself:
`Hardswish` runs `aten::hardswish_`. Names are compared in lower case without underscores, without
namespace, and without what autograd adds to them: `ReluBackward0` reads `relu`.

Source: HOTLINE section 4.3 (substring matching, and 14 special rules).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Role:
    """What leaves of some classes run.

    Attributes:
        classes: a pattern that the class name contains.
        whole: a pattern of the operator that such a leaf's forward consists of.
        part: a pattern of an operator that tells such a leaf among others that it runs; it counts
            only in a trace that has none of the first kind.
        sure: whether each call runs such an operator, and hardly anything else does.
        node: a pattern of gradient nodes of the whole operator that are called otherwise than it.
        lead, trail: patterns of operators, as recorded, that are its own too right before it and
            right after it.
    """

    classes: str
    whole: str
    part: str = ""
    sure: bool = False
    node: str = "^$"
    lead: str = "^$"
    trail: str = "^$"


_TABLE = (
    Role(r"^Identity$", r"^$"),
    Role(r"Loss$|Criterion|CrossEntropy", r"loss|crossentropy|kldiv"),
    Role(r"Rotary|RoPE", r"rotary", r"^cos$"),
    Role(r"MultiheadAttention|Scaled?DotProduct|FlashAttention|^Attention$",
         r"attention|flashattn", sure=True),
    Role(r"LSTM|GRU|^RNN", r"lstm|gru|^rnn|rnnlayer", r"rnn", sure=True),
    Role(r"EmbeddingBag", r"^embeddingbag", sure=True),
    Role(r"Embedding$", r"^embedding(dense)?$", r"^(indexselect|gather|index)$", sure=True,
         trail=r"all_reduce$"),
    Role(r"Conv1D$", r"^$", r"^addmm$", sure=True),
    Role(r"Linear|Dense$", r"^linear|^t?addmm$", r"^(mm|matmul)$|gemm|nvjet",
         sure=True, node=r"^mm$", trail=r"all_reduce$"),
    Role(r"Conv", r"^conv|convolution", r"miopen.*conv|cudnn.*conv|(w|d)grad|fprop|igemm",
         sure=True),
    Role(r"BatchNorm", r"batchnorm", r"cudnn.*bn|miopen.*bn|bnfw|bnbw", sure=True,
         lead=r"^aten::add_$"),
    Role(r"InstanceNorm", r"instancenorm", r"batchnorm", sure=True),
    Role(r"GroupNorm", r"groupnorm", sure=True),
    Role(r"RMSNorm|T5LayerNorm", r"rmsnorm", r"^rsqrt$", sure=True,
         lead=r"^aten::empty(_like)?$"),
    Role(r"LayerNorm", r"layernorm", r"^(rsqrt|sqrt|std|var|varmean)$", sure=True),
    Role(r"DropPath|StochasticDepth", r"bernoulli"),
    Role(r"Dropout", r"dropout", r"bernoulli"),
    Role(r"GELU", r"^gelu$", r"^(tanh|erf|sigmoid)$"),
    Role(r"ReLU6", r"^(hardtanh|relu6)$"),
    Role(r"^SiLU|^Swish", r"^silu$", r"^sigmoid$"),
    Role(r"AdaptiveAvgPool", r"adaptiveavgpool", r"^mean$"),
    Role(r"MoE|Experts$", r"moe"),
    Role(r"Quant", r"quant"),
)  # fmt: skip

# Leaves of torch.nn whose forward is one operator, and nothing that is told beside it.
ONE_OPERATOR = re.compile(
    r"^(Lazy)?(Bil|L)inear$|^(Lazy)?Conv(Transpose)?\dd$|^(Lazy|Sync)?(Batch|Instance)Norm(\dd)?$"
    r"|^(Layer|Group|RMS)Norm$|^Embedding(Bag)?$|Dropout(\dd)?$|^\w*(ELU|LU|LU6)$|^(Soft|Log|Hard)\w+$"
    r"|^(Adaptive|Max|Avg|LP)\w*Pool\dd$|^(LSTM|GRU|RNN)(Cell)?$|^(Sigmoid|Tanh|Mish|Flatten)$"
)
# Branches that run operators of these classes by function, and call no child.
FUNCTIONAL = {
    "MultiheadAttention": ("Linear", "MultiheadAttention", "Softmax"),
    "NonDynamicallyQuantizableLinear": ("Linear",),
}
# Branches that run such operators beside their children, the innermost of them.
AROUND = (Role(r"Attention|Attn", r"attention|flashattn|softmax|^(baddbmm|bmm|matmul)$"),)
# Branches without operators of their own: they have no forward, or one that only passes on.
CONTAINERS = frozenset(("ModuleList", "ModuleDict", "Sequential", "ParameterList", "ParameterDict"))

_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")
_NAMESPACE = re.compile(r"^\w+::")
_SUFFIX = re.compile(r"(activation|function|layer|module)$")
_LEAST_SUBSTRING = 5


@cache
def plain(name: str) -> str:
    """An operator's or a kernel's name as patterns see it.

    Example:
        >>> plain("aten::relu_"), plain("autograd::engine::evaluate_function: ReluBackward0")
        ('relu', 'relu')
    """
    return _NAMESPACE.sub("", _AUTOGRAD.sub("", name)).replace("_", "").lower()


def role_around(class_name: str) -> Role | None:
    """What a branch of this class runs beside its children, if that is known."""
    return next((role for role in AROUND if re.search(role.classes, class_name)), None)


@cache
def role_of(class_name: str) -> Role:
    """What a leaf of this class runs, from the table or from the name itself."""
    for role in _TABLE:
        if re.search(role.classes, class_name):
            return role
    own = _SUFFIX.sub("", class_name.replace("_", "").lower())
    pattern = re.escape(own) if len(own) >= _LEAST_SUBSTRING else f"^{re.escape(own)}$"
    return Role(f"^{re.escape(class_name)}$", pattern)
