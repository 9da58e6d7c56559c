"""Which operators a leaf module runs, by the name of its class: a table, and two rules.

A class outside the table runs the operator of its own name: `Hardswish` runs `aten::hardswish_`.
Names are compared in lower case, without underscores and namespaces.

Source: HOTLINE section 4.3 (substring matching, and 14 special rules).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from math import prod
from typing import Any

from stepscope.facts.annotate.links.backward import plain
from stepscope.facts.annotate.module_evidence import Module


@dataclass(frozen=True)
class Role:
    """What leaves of some classes run."""

    classes: str  # pattern of class names
    whole: str  # pattern of the operator that is the whole forward of such a leaf
    # pattern of an operator that identifies such a leaf among others that it runs; used only in a trace
    # without operators that match `whole`
    part: str = ""
    sure: bool = False  # whether each call runs such an operator, and hardly anything else does
    # patterns of recorded operators that also belong to the leaf, right before and right after it
    lead: str = "^$"
    trail: str = "^$"


_DEVIATION = r"^(rsqrt|sqrt|std|var|varmean)$"  # what a norm in Python divides by
_TABLE = (
    Role(r"^Identity$", r"^$"),
    Role(r"Loss$|Criterion|CrossEntropy", r"loss|crossentropy|kldiv"),
    Role(r"Rotary|RoPE", r"rotary", r"^cos$"),
    Role(
        r"MultiheadAttention|Scaled?DotProduct|FlashAttention|^Attention$", r"attention|flashattn", sure=True
    ),
    Role(r"(LSTM|GRU|RNN)Cell$", r"(lstm|gru|rnn\w*)cell$", sure=True),
    Role(r"LSTM|GRU|^RNN", r"^(?!.*cell$)(.*lstm|.*gru|rnn|.*rnnlayer)", r"rnn", sure=True),
    Role(r"EmbeddingBag", r"^embeddingbag", sure=True),
    Role(
        r"Embedding$",
        r"^embedding(dense)?$",
        r"^(indexselect|gather|index)$",
        sure=True,
        trail=r"all_reduce$",
    ),
    Role(r"Conv1D$", r"^$", r"^addmm$", sure=True),
    Role(
        r"Linear|Dense$", r"^linear|^t?addmm$", r"^(mm|matmul)$|gemm|nvjet", sure=True, trail=r"all_reduce$"
    ),
    Role(r"Conv", r"^conv|convolution", r"miopen.*conv|cudnn.*conv|(w|d)grad|fprop|igemm", sure=True),
    Role(r"BatchNorm", r"batchnorm", r"cudnn.*bn|miopen.*bn|bnfw|bnbw", sure=True, lead=r"^aten::add_$"),
    Role(r"InstanceNorm", r"instancenorm", r"batchnorm", sure=True),
    Role(r"GroupNorm", r"groupnorm", sure=True),
    Role(r"RMSNorm|T5LayerNorm", r"rmsnorm", r"^rsqrt$", sure=True, lead=r"^aten::empty(_like)?$"),
    Role(r"LayerNorm", r"layernorm", _DEVIATION, sure=True),
    Role(r"Norm(\dd)?$", r"(batch|layer|group|rms|instance)norm", _DEVIATION, sure=True),
    Role(r"DropPath|StochasticDepth", r"bernoulli"),
    Role(r"Dropout", r"dropout", r"bernoulli"),
    Role(r"GELU", r"^gelu$", r"^(tanh|erf|sigmoid)$"),
    Role(r"ReLU6", r"^(hardtanh|relu6)$"),
    Role(r"^SiLU|^Swish", r"^silu$", r"^sigmoid$"),
    Role(r"AdaptiveAvgPool", r"adaptiveavgpool", r"^mean$"),
    Role(r"MoE|Experts$", r"moe"),
    Role(r"Quant", r"quant"),
)

# Leaves of torch.nn whose forward is exactly one operator.
ONE_OPERATOR = re.compile(
    r"^(Lazy)?(Bil|L)inear$|^(Lazy)?Conv(Transpose)?\dd$|^(Lazy|Sync)?(Batch|Instance)Norm(\dd)?$"
    r"|^(Layer|Group|RMS)Norm$|^Embedding(Bag)?$|Dropout(\dd)?$|^\w*(ELU|LU|LU6)$|^(Soft|Log|Hard)\w+$"
    r"|^(Adaptive|Max|Avg|LP)\w*Pool\dd$|^(LSTM|GRU|RNN)(Cell)?$|^(Sigmoid|Tanh|Mish|Flatten)$"
)
# Branches that run operators of these classes themselves, and call no child.
FUNCTIONAL = {
    "MultiheadAttention": ("Linear", "MultiheadAttention", "Softmax"),
    "NonDynamicallyQuantizableLinear": ("Linear",),
}
# Branches that run such operators in addition to their children; the innermost counts.
AROUND = (Role(r"Attention|Attn", r"attention|flashattn|softmax|^(baddbmm|bmm|matmul)$"),)
# Branches without operators of their own: no forward, or one that only calls children.
CONTAINERS = frozenset(("ModuleList", "ModuleDict", "Sequential", "ParameterList", "ParameterDict"))

_SUFFIX = re.compile(r"(activation|function|layer|module)$")
_LEAST_SUBSTRING = 5  # letters of a class name: shorter ones are part of other names


def role_around(class_name: str) -> Role | None:
    """What a branch of this class runs in addition to its children, if known."""
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


# -- the roles of one tree, and the operators of one trace that play them


class Roles:
    """The roles of a tree's modules, each with a bit, and the operators and kernels that play them."""

    def __init__(self, modules: Sequence[Module], operators: Iterable[str]) -> None:
        roles = {role for module in modules for role in roles_of(class_name(module))}
        self._bits = {role: 1 << number for number, role in enumerate(sorted(roles, key=repr))}
        names = {name: plain(name) for name in operators}
        self._patterns = {role: _pattern(role, names.values()) for role in roles}
        self.sure = self.of(role for role in roles if role.sure)
        self._sizes: dict[tuple[int, int], int] = {}
        for module in modules:
            role, count = self._size(module)
            if role & self.sure and count > 0:
                self._sizes.setdefault((role, count), 1 << (len(self._bits) + len(self._sizes)))
        self._known = {
            name: self.of(role for role, pattern in self._patterns.items() if pattern.search(text))
            for name, text in names.items()
        }

    def of(self, roles: Iterable[Role]) -> int:
        """The bits of several roles."""
        return sum({self._bits[role] for role in roles})

    def size(self, module: Module) -> int:
        """The bit of a leaf's role and number of parameters; 0 if unknown."""
        return self._sizes.get(self._size(module), 0)

    def sizes_of(self, bits: int, shapes: Iterable[Any]) -> int:
        """The bits of leaf sizes that match an operator's inputs, as `record_shapes` records their shapes."""
        counts = [prod(shape) for shape in shapes if shape and all(type(n) is int for n in shape)]
        sums = {*counts, *map(sum, combinations(counts, 2))}
        sizes = (bit for (role, size), bit in self._sizes.items() if role & bits and size in sums)
        return sum(sizes)

    @property
    def all_sizes(self) -> int:
        """All bits of sizes."""
        return sum(self._sizes.values())

    def _size(self, module: Module) -> tuple[int, int]:
        count = module.facts.get("parameters")
        return self.of([role_of(class_name(module))]), count if isinstance(count, int) else -1

    def bits_of(self, name: str) -> int:
        """The bits of the roles that an operator or a kernel of this name may play."""
        return self._known.get(name, 0)


def _pattern(role: Role, names: Iterable[str]) -> re.Pattern[str]:
    """The pattern of a role in this trace: its whole operator, or a part if there is none."""
    whole = re.compile(role.whole)
    if not role.part or any(whole.search(name) for name in names):
        return whole
    return re.compile(role.part)


def class_name(module: Module) -> str:
    """The class name of a module, unqualified."""
    return module.kind.rpartition(".")[2]


def roles_of(name: str) -> list[Role]:
    """The roles that a module of this class may play."""
    roles = [role_of(role) for role in FUNCTIONAL.get(name, (name,))]
    around = role_around(name)
    return [*roles, around] if around else roles


# -- the tree as the aligner sees it: the roles of each module, and costs

# Costs, relative to one operator that certainly belongs to a module but is unclaimed.
_NOT_CALLED, _NOT_CALLED_UNSURE = 1.0, 0.1
_DOUBTFUL = 0.05  # to call a leaf that may not exist
_AGAIN, _AGAIN_UNSURE, BLOCK_AGAIN = 0.8, 0.15, 0.4  # to call a leaf, or a block, once more
Kind = tuple[str, int]
Kinds = tuple[Kind, tuple[Kind, ...]]


@dataclass(eq=False)
class ModuleShape:
    """A module as the aligner sees it."""

    module: int  # index in the tree
    kind: Kind  # the name of its class, and of a leaf the bit of its size
    own: int  # bits of the roles of operators that it runs itself
    all: int  # the same including all descendants
    children: "tuple[ModuleShape, ...]"  # its child modules
    shape: int  # a number shared by modules that look the same to the aligner
    absence: float = 0.0  # of a leaf the cost of not calling it
    again: float = 0.0  # of a leaf the cost of calling it once more
    call: float = 0.0  # of a leaf the cost of calling it at all
    is_leaf: bool = False  # whether each call runs one such operator

    @cached_property
    def kinds(self) -> Kinds:
        """Its own kind and those of its children."""
        return self.kind, tuple(child.kind for child in self.children)

    def fits_size(self, sizes: int) -> bool:
        """Whether it may run an operator of some sizes; unknown sizes fit."""
        return not (sizes and self.kind[1]) or bool(self.kind[1] & sizes)


def root_shape(modules: Sequence[Module], roles: Roles, doubtful: Collection[int] = ()) -> ModuleShape:
    """The tree as shapes, below a root (module -1) that stands for the whole model."""
    children: dict[int, list[ModuleShape]] = {}
    shapes: dict[object, int] = {}
    for index in reversed(range(len(modules))):
        inner = tuple(reversed(children.pop(index, [])))
        part = _part(index, modules[index], inner, roles, shapes, index in doubtful)
        children.setdefault(modules[index].parent, []).append(part)
    return _branch(-1, "", 0, tuple(reversed(children.get(-1, []))), shapes)


def _part(
    index: int,
    module: Module,
    children: tuple[ModuleShape, ...],
    roles: Roles,
    shapes: dict[object, int],
    doubtful: bool,
) -> ModuleShape:
    if not children:
        return _leaf(index, module, roles, shapes, doubtful)
    name = class_name(module)
    if name in FUNCTIONAL:
        part = _branch(index, name, roles.of(roles_of(name)), (), shapes)
        part.absence, part.again = _NOT_CALLED, BLOCK_AGAIN
        return part
    around = role_around(name)
    own = roles.of([around]) if around else 0
    taken = any(child.all & own for child in children)
    return _branch(index, name, 0 if taken else own, children, shapes)


def _leaf(index: int, module: Module, roles: Roles, shapes: dict[object, int], doubtful: bool) -> ModuleShape:
    name = class_name(module)
    bits, size = roles.of([role_of(name)]), roles.size(module)
    sure = bool(bits & roles.sure)
    shape = shapes.setdefault((bits, size, doubtful), len(shapes))
    return ModuleShape(
        index,
        (name, size),
        bits,
        bits,
        (),
        shape,
        absence=_NOT_CALLED if sure and not doubtful else _NOT_CALLED_UNSURE,
        again=_AGAIN if sure else _AGAIN_UNSURE,
        call=_DOUBTFUL * doubtful,
        is_leaf=True,
    )


def _branch(
    index: int, name: str, own: int, children: tuple[ModuleShape, ...], shapes: dict[object, int]
) -> ModuleShape:
    below = own
    for child in children:
        below |= child.all
    shape = shapes.setdefault((own, tuple(child.shape for child in children)), len(shapes))
    return ModuleShape(index, (name, 0), own, below, children, shape)
