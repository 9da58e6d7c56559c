"""Scopes of compiled operations: their pass, their modules, their primitive.

JAX writes the scopes that were open when an operation was traced, and the transformations between:
`jit(train_step)/transpose(jvp(CNN))/Dense_0/dot_general` is part of the backward pass of `Dense_0`
in `CNN`. A fused operation has the scope of one of its parts. An operation merged from several has
their scopes with `;` between (the first counts); for collectives, what they have in common and
`(first:second:…)` with the rest of each. TensorFlow's names have a form of their own:
`gradient_tape/model/dense/MatMul/MatMul_1`.

Source: JAX, jax/_src/source_info_util.py; TensorFlow, tensorflow/python/eager/backprop.py and
keras/src/backend/common/name_scope.py.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Rows
from stepscope.facts.annotate.range_names import stage_of_range
from stepscope.trace.table import Table, Text

_WRAPPED = re.compile(r"^([\w-]+)\((.*)\)$", re.DOTALL)
_CALLS = ("jit", "pjit", "pmap", "xla_call", "custom_partitioning")  # in parentheses: a function's name
_MACHINERY = re.compile(
    r"^(while|body|cond|body_jaxpr|cond_jaxpr|branch_\d+_fun|scan|closed_call|core_call|pjit"
    r"|custom_[jv]jp_call(_jaxpr)?|custom_lin|checkpoint|remat2?|rematted_computation|shard_map"
    r"|pallas_call|xla_call)$"
)
_REPEATED = "rematted_computation"
# What encloses an operation, as JAX's users call it; `vmap` is a transformation.
_ENCLOSING = {
    "while": "while",
    "scan": "scan",
    "checkpoint": "remat",
    "remat": "remat",
    "remat2": "remat",
    _REPEATED: "recomputed",
    "shard_map": "shard_map",
    "pallas_call": "pallas_call",
}
_BRANCH = re.compile(r"^branch_\d+_fun$")
_OF_SCAN = ("while", "body", "closed_call")
_EINSUM, _FUNCTION = "->", "<locals>"
_LONGEST, _DEEPEST = 4096, 64  # parsing takes bounded time for any input


class Scope(NamedTuple):
    """A parsed scope."""

    program: str  # the compiled function, empty if unknown
    stage: str | None  # the stage from its transformations or from a scope name; None if unknown
    recompute: bool  # whether it is forward work repeated in the backward pass
    modules: tuple[str, ...]  # names of the enclosing scopes, the outermost first
    primitive: str  # the operation itself
    # what encloses it, outermost first: `scan`, `while`, `cond`, `vmap`, `remat`, `recomputed`,
    # `shard_map`, `pallas_call`
    inside: tuple[str, ...] = ()

    @property
    def innermost(self) -> str:
        """The innermost of `modules`, empty without any."""
        return self.modules[-1] if self.modules else ""


@lru_cache(maxsize=1 << 16)
def scope_of(text: str, has_loss: bool = True) -> Scope:
    """Parse a scope.

    Args:
        has_loss: whether what is named a loss is one (see `scopes_of`).

    Example:
        >>> scope_of("jit(step)/transpose(jvp(CNN))/Dense_0/dot_general")[1:5]
        ('backward', False, ('CNN', 'Dense_0'), 'dot_general')
        >>> scope_of("jit(step)/jvp(vmap())/while/body/closed_call/tanh").inside
        ('vmap', 'scan')
    """
    if named := operation_name(text[:_LONGEST]):
        return Scope("", named.stage, False, named.layers[:_DEEPEST], named.primitive)
    *around, primitive = _split(text[:_LONGEST].partition(";")[0])
    if primitive.startswith("(") and ":" in primitive:
        return _merged("/".join(around), primitive, has_loss)
    program, transforms, machinery = "", set[str](), set[str]()
    names: list[str] = []
    for part in around if "(" not in primitive else (*around, primitive):
        whole = part
        while found := _WRAPPED.match(part):
            transforms.add(found[1])
            program = program or (found[2] if found[1] in _CALLS else "")
            part = "" if found[1] in _CALLS else found[2]
        if part != whole and part in names:  # a part transformed twice is written twice
            del names[names.index(part) :]
        if _MACHINERY.match(part):
            machinery.add(part)
        elif part and _EINSUM not in part and _FUNCTION not in part:
            names.append(part)
    stage = _stage(transforms, names if has_loss else [name for name in names if not _is_loss(name)])
    recompute = stage == "backward" and _REPEATED in machinery
    inside = tuple(_enclosing(around))[:_DEEPEST]
    return Scope(program, stage, recompute, tuple(names[:_DEEPEST]), primitive, inside)


def _merged(around: str, operations: str, has_loss: bool) -> Scope:
    """The scope of merged operations, `(Dense_0/add:Dense_1/add)`: the first, in shared modules."""
    inner = operations.removeprefix("(").removesuffix(")")
    parts = [f"{around}/{operation}" for operation in _split(inner, ":") if operation]
    scopes = [scope_of(part, has_loss) for part in parts]
    levels = zip(*(scope.modules for scope in scopes if scope.modules), strict=False)
    shared = takewhile(lambda level: len(set(level)) == 1, levels)
    stage = next((scope.stage for scope in scopes if scope.stage), None)
    return scopes[0]._replace(modules=tuple(level[0] for level in shared), stage=stage)


def _enclosing(parts: list[str]) -> Iterator[str]:
    """What encloses an operation; the body of a scan is a call within a while loop."""
    for number, part in enumerate(parts):
        if "(" in part:
            yield from (name for name in part.split("(") if name == "vmap")
        elif tuple(parts[number : number + 3]) == _OF_SCAN:
            yield "scan"
        elif _BRANCH.match(part):
            yield "cond"
        elif shown := _ENCLOSING.get(part):
            yield shown


def _split(text: str, separator: str = "/") -> list[str]:
    """The parts between separators that are outside parentheses."""
    parts, depth = [""], 0
    for piece in re.split(f"([{separator}()])", text):
        depth += (piece == "(") - (piece == ")")
        if piece == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


_BACKWARD = re.compile(r"(?i)(backward|bwd)([ _]?pass)?")


def _stage(transforms: set[str], names: list[str]) -> str | None:
    if "transpose" in transforms:
        return "backward"
    # Nothing that is differentiated is backward, and layers have names such as `backward_rnn` (Flax).
    forward = "forward" if "jvp" in transforms else None
    may_be_backward = [not forward and _BACKWARD.fullmatch(name) for name in names]
    stages = zip(map(stage_of_range, names), may_be_backward, strict=True)
    return next((stage for stage, may in stages if stage and (may or stage != "backward")), forward)


_PRODUCTS = ("dot_general", "conv_general_dilated")


def scopes_of(texts: Sequence[str]) -> list[Scope]:
    """The scopes of one profile.

    A function that is named a loss may call the model. Where all products of a program's forward
    pass are in a loss, only what is in no module within that is the loss; without any, none is.
    """
    scopes = [scope_of(text) for text in texts]
    products = [scope for scope in scopes if scope.primitive in _PRODUCTS]
    outside = {scope.program for scope in products if scope.stage == "forward"}
    around = {scope.program for scope in products if scope.stage == "loss"} - outside
    losses = [scope for scope in scopes if scope.stage == "loss" and scope.program in around]
    with_modules = {scope.program for scope in losses if not _is_loss(scope.innermost)}
    models = {scope for scope in losses if not (scope.program in with_modules and _is_loss(scope.innermost))}
    pairs = zip(texts, scopes, strict=True)
    return [scope_of(text, has_loss=False) if scope in models else scope for text, scope in pairs]


def _is_loss(name: str) -> bool:
    return stage_of_range(name) == "loss"


def primitives(scope: Text) -> Text:
    """The primitive of each scope."""
    return scope.map(lambda text: scope_of(text).primitive)


def program_names(scope: Text) -> Text:
    """The program of each scope, empty if unknown."""
    return scope.map(lambda text: scope_of(text).program)


def programs(events: Table, rows: Ids | Rows) -> Ids:
    """The program of each of some operations as a number; without one, each launch is a program."""
    names = program_names(events.text("scope"))
    program = names.codes[rows]
    return np.where(program >= 0, program, len(names.values) + events["correlation"][rows])


# -- TensorFlow

_NAME = re.compile(
    r"^(?P<calls>(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*)"
    r"(?P<gradient>(?:gradient_tape|gradients)(?:_\d+)?/)?(?P<rest>[^()]*)$"
)
_OPTIMIZER = re.compile(
    r"(?i)^(adam\w?|adamax|nadam|adagrad|adadelta|adafactor|rmsprop|sgd|ftrl|lion|lamb|muon"
    r"|loss_scale_optimizer|gradientdescent|momentum)(_\d+)?$"
)
_LOSS = re.compile(r"(?i)(?<![a-z])loss(?![a-z])|cross_?entropy|mean_(squared|absolute)_error")


class OperationName(NamedTuple):
    """A parsed name."""

    stage: str | None  # None where the name alone does not say it
    # names of what encloses the operation, the outermost first; of a gradient those of the operation that
    # it is of
    layers: tuple[str, ...]
    primitive: str  # the operation itself


def operation_name(text: str) -> OperationName | None:
    """Parse a name; None if nothing in it is TensorFlow's own.

    Example:
        >>> operation_name("gradient_tape/model/dense/MatMul/MatMul_1")
        OperationName(stage='backward', layers=('model', 'dense'), primitive='MatMul_1')
        >>> operation_name("adam/Sub_2").stage
        'optimizer'
    """
    found = _NAME.match(text)
    if found is None:
        return None
    *around, primitive = found["rest"].split("/")
    if found["gradient"]:
        of = around[-1:] and around[-1][:1].isupper()  # an operation; layers are in lower case
        return OperationName("backward", tuple(around[:-1] if of else around), primitive)
    stage = _stage_of_layer(around[0]) if around else None
    if not (stage or found["calls"]):
        return None
    return OperationName(stage, tuple(around), primitive)


def _stage_of_layer(name: str) -> str | None:
    if _OPTIMIZER.match(name):
        return "optimizer"
    return "loss" if _LOSS.search(name) else None


def layers_with_gradients(texts: Iterable[str]) -> set[str]:
    """The outermost layers of which a profile has gradients."""
    names = filter(None, map(operation_name, texts))
    return {name.layers[0] for name in names if name.stage == "backward" and name.layers}


def loads_next_batch(name: str) -> bool:
    """Whether a thread waits for a batch of tf.data in an event of this name."""
    return name.startswith("IteratorGetNextOp::")
