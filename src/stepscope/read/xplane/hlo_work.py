"""Operations and bytes of the instructions of an XLA program, from their shapes.

A fusion computes what its members compute, and moves its operands and results; what is sliced
inside of it is moved in part. The counts are XLA's own (`compiled.cost_analysis()`): one operation
for each element of an elementwise result, none for transcendental functions.

Source: hlo_cost_analysis.cc and hlo.proto (https://github.com/openxla/xla, xla/service).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, nan, prod
from typing import NamedTuple

from stepscope.read.xplane.hlo_products import HloProduct, Shape, convolution, dot, first, library_call, size
from stepscope.read.xplane.protobuf import Span
from stepscope.read.xplane.xspace import XSpaceFile
from stepscope.trace.declaration import PRODUCT_KINDS

# Opcodes by what is counted of them: an operation for each element of the result, nothing, or not known.
_COUNTED = {
    "by element": "abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide "
    "floor imag is-finite maximum minimum multiply negate not or popcnt real reduce-precision remainder "
    "round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign "
    "stochastic-convert subtract xor",
    "nothing": "parameter constant get-tuple-element bitcast tuple after-all domain partition-id replica-id "
    "add-dependency opt-barrier",
    "unknown": "sort topk fft cholesky triangular-solve ragged-dot rng rng-bit-generator "
    "batch-norm-training batch-norm-inference batch-norm-grad",
}
_ELEMENTWISE, _NOTHING, _UNKNOWN = (frozenset(opcodes.split()) for opcodes in _COUNTED.values())
_AROUND_OTHERS = frozenset(("while", "conditional", "call"))  # their instructions are events too
_PREFIXES = "all-reduce all-gather all-to-all reduce-scatter collective- ragged-all-to-all"
_COLLECTIVES = tuple(_PREFIXES.split())
_SLICES = ("slice", "dynamic-slice", "gather")
_KINDS = ("attention", "convolution", "gemm", "communication", "reduction", "embedding",
          "elementwise", "")  # fmt: skip  # the first that a fusion contains is its kind
_OPCODES = {
    "gemm": ("dot", "scaled-dot", "ragged-dot"),
    "convolution": ("convolution",),
    "reduction": ("reduce", "reduce-window", "select-and-scatter", "sort", "topk"),
    "embedding": ("gather", "scatter"),
}
_KIND_OF = {opcode: kind for kind, opcodes in _OPCODES.items() for opcode in opcodes}


class HloNode(NamedTuple):
    """An instruction, as far as its work depends on it."""

    id: int  # its number in the computation
    opcode: str  # its name in XLA
    shape: Shape  # of its result
    operands: tuple[int, ...]  # ids of its operands
    called: tuple[int, ...]  # ids of the computations that it calls
    span: Span  # the whole message


class HloWork(NamedTuple):
    """The work of one execution of an instruction; nan if unknown."""

    flops: float = 0.0  # operations, as XLA counts them
    product_flops: float = 0.0  # those of matrix products, convolutions and attention
    bytes: float = 0.0  # bytes read and written
    width: int = 0  # bytes per element of the operands of its largest product, 0 if it has none
    kind: str = ""  # of `events.kind`, empty if the instruction only runs others
    # Of its largest product, if that is a matrix product: rows, contracted size, columns.
    sizes: tuple[int, ...] = ()


class _Computation(NamedTuple):
    """The sum of a computation's instructions, and what a fusion of them reads and writes."""

    work: HloWork
    reads: Mapping[int, float]  # by number of the parameter
    writes: float


class ProgramWork:
    """The work of a program's instructions; computations come before those that call them."""

    def __init__(self, source: XSpaceFile) -> None:
        self._source = source
        self._computations: dict[int, _Computation] = {}

    def add(self, number: int, root: int, nodes: Sequence[HloNode]) -> list[HloWork]:
        """The work of each instruction of a computation; `root` is the id of its result's instruction."""
        by_id = {node.id: node for node in nodes}
        works = [self._work(node, [by_id[id] for id in node.operands if id in by_id]) for node in nodes]
        self._computations[number] = _Computation(
            _sum(works), self._reads(nodes), self._written(nodes, by_id.get(root))
        )
        return works

    def _work(self, node: HloNode, operands: Sequence[HloNode]) -> HloWork:
        opcode = node.opcode
        if opcode in _NOTHING:
            return HloWork()
        if opcode in _AROUND_OTHERS or opcode.endswith(("-done", "-update")):
            return HloWork(nan, nan, nan)
        shapes = [self._source.spend(operand.shape) for operand in operands]
        if opcode in ("fusion", "async-start"):
            return self._fusion(node, shapes)
        product = self._product(node, shapes)
        is_collective = opcode.startswith(_COLLECTIVES)
        kind = "communication" if is_collective else _KIND_OF.get(opcode, "elementwise")
        if product is None:
            return HloWork(self._flops(node, shapes), 0.0, _moved(node, shapes), 0, kind)
        moved = _moved(node, shapes) if product.bytes != product.bytes else product.bytes
        if product.kind not in PRODUCT_KINDS:
            return HloWork(product.flops, 0.0, moved, 0, product.kind)
        width = max((first(shape).width for shape in shapes[:2]), default=0)
        return HloWork(product.flops, product.flops, moved, width, product.kind, product.sizes)

    def _product(self, node: HloNode, shapes: Sequence[Shape]) -> HloProduct | None:
        if node.opcode in ("dot", "scaled-dot"):
            return dot(self._source, node.span, shapes, node.shape)
        if node.opcode == "convolution":
            return convolution(self._source, node.span, [first(each) for each in (*shapes[:2], node.shape)])
        if node.opcode == "custom-call":
            return library_call(self._source, node.span, shapes, node.shape)
        return HloProduct("gemm") if node.opcode == "ragged-dot" else None

    def _fusion(self, node: HloNode, shapes: Sequence[Shape]) -> HloWork:
        inside = self._called(node)
        if inside is None:
            return HloWork(nan, nan, _moved(node, shapes))
        reads = (inside.reads.get(place, size(shape)) for place, shape in enumerate(shapes))
        return inside.work._replace(bytes=sum(reads) + inside.writes)

    def _called(self, node: HloNode, place: int = 0) -> _Computation | None:
        return self._computations.get(node.called[place]) if place < len(node.called) else None

    def _flops(self, node: HloNode, shapes: Sequence[Shape]) -> float:
        elements = first(node.shape).elements
        if node.opcode in _ELEMENTWISE:
            return float(elements)
        if node.opcode in _UNKNOWN:
            return nan
        times = _REPEATED.get(node.opcode)
        if times is None or not shapes:
            return 0.0
        counts = times(self._source, node, shapes)
        called = (self._called(node, place) for place in range(len(counts)))
        return sum(
            count * (inside.work.flops if inside else nan)
            for count, inside in zip(counts, called, strict=True)
        )

    def _reads(self, nodes: Sequence[HloNode]) -> dict[int, float]:
        """Bytes that are read of each parameter: of one that is only sliced, the slices."""
        users: dict[int, list[tuple[HloNode, int]]] = {}
        for node in nodes:
            for place, id in enumerate(node.operands):
                users.setdefault(id, []).append((node, place))
        return {
            self._source.number(node.span, 9): min(
                size(node.shape), sum(_read_by(node.shape, users, node.id))
            )
            for node in nodes
            if node.opcode == "parameter"
        }

    def _written(self, nodes: Sequence[HloNode], root: HloNode | None) -> float:
        """Bytes of a result; of one that is updated in place, the update's."""
        viewed: dict[int, HloNode] = {}  # what each is of, if it is a view
        for node in nodes:
            of = viewed.get(node.operands[0]) if node.opcode == "bitcast" and node.operands else None
            viewed[node.id] = of or node
        parts = root.operands if root and root.opcode == "tuple" else [root.id] if root else ()
        found = [viewed[id] for id in parts if id in viewed]
        return sum(size(self._source.spend(viewed.get(_written_by(node), node).shape)) for node in found)


def _written_by(node: HloNode) -> int:
    updates = node.opcode == "dynamic-update-slice" and len(node.operands) > 1
    return node.operands[1] if updates else node.id


def _read_by(shape: Shape, users: Mapping[int, Sequence[tuple[HloNode, int]]], id: int) -> Iterator[float]:
    """Bytes that each use of a value reads of it; views of it are followed."""
    whole = size(shape)
    if id not in users:
        yield whole  # it is a result
    waiting, views = [id], {id}
    while waiting:
        for user, place in users.get(waiting.pop(), ()):
            if user.opcode == "bitcast" and not place:
                waiting += {user.id} - views
                views.add(user.id)
            elif user.opcode in _SLICES and place == 0:
                yield size(user.shape)
            elif user.opcode != "dynamic-update-slice" or place:
                yield whole


def _moved(node: HloNode, shapes: Sequence[Shape]) -> float:
    """Bytes that an instruction reads and writes."""
    sizes, result = [size(shape) for shape in shapes], size(node.shape)
    match node.opcode:
        case "slice" | "dynamic-slice" | "gather":
            return 2 * result + sum(sizes[1:])
        case "dynamic-update-slice":
            return 2 * sum(sizes[1:2]) + sum(sizes[2:])
        case "scatter":
            count = len(sizes) // 2
            return 3 * sum(sizes[count + 1 :]) + sum(sizes[count : count + 1])
        case "custom-call":  # its further results are mostly space to work in
            return sum(sizes) + first(node.shape).bytes
    return sum(sizes) + result


def _sum(works: Sequence[HloWork]) -> HloWork:
    products = [work for work in works if work.width]
    largest = max(products, key=lambda work: work.product_flops, default=HloWork())
    return HloWork(
        sum(work.flops for work in works),
        sum(work.product_flops for work in works),
        sum(work.bytes for work in works),
        largest.width,
        min((work.kind for work in works), key=_KINDS.index, default=""),
        largest.sizes,
    )


# -- instructions that apply a computation many times: how often they apply each


def _window_positions(source: XSpaceFile, node: HloNode) -> float:
    """Applications for one element of the result: of all values in a window but the first."""
    windows = source.inner(node.span, 15)
    sizes = (float(source.number(one, 1)) for window in windows for one in source.inner(window, 1))
    positions = max(prod(sizes), 1.0)
    return positions - 1 if positions < inf else nan


def _elements(shapes: Sequence[Shape], place: int) -> int:
    """Elements of one of some operands; of an absent one none."""
    return first(shapes[place]).elements if place < len(shapes) else 0


def _scattered(source: XSpaceFile, node: HloNode, shapes: Sequence[Shape]) -> list[float]:
    elements = _elements(shapes, 1)
    return [_window_positions(source, node) * elements, elements]


def _mapped(source: XSpaceFile, node: HloNode, shapes: Sequence[Shape]) -> list[float]:
    return [first(node.shape).elements]


_REPEATED: Mapping[str, Callable[[XSpaceFile, HloNode, Sequence[Shape]], list[float]]] = {
    "reduce": lambda source, node, shapes: [max(_elements(shapes, 0) - first(node.shape).elements, 0)],
    "reduce-window": lambda source, node, _: [_window_positions(source, node) * first(node.shape).elements],
    "select-and-scatter": _scattered,
    "scatter": lambda source, node, shapes: [_elements(shapes, len(shapes) // 2 + 1)],
    "map": _mapped,
    "all-reduce": _mapped,
}
