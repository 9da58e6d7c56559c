"""Modules from a model tree alone: match its leaves with the names of operators, in order.

docs/design/modules.md, "How matching works", has the steps.

Source: HOTLINE section 4.3.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask, Rows
from stepscope.facts.annotate.links.backward import is_backward, plain
from stepscope.facts.annotate.links.launches import at_launch
from stepscope.facts.annotate.module_evidence import Evidence, Module, chain_of, tree_modules
from stepscope.facts.annotate.modules.matching.alignment import Aligner, OwnedOperator
from stepscope.facts.annotate.modules.matching.completion import complete
from stepscope.facts.annotate.modules.matching.roles import (
    CONTAINERS,
    ONE_OPERATOR,
    ModuleShape,
    Role,
    Roles,
    class_name,
    role_around,
    role_of,
    root_shape,
)
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.trace.nesting import holds, innermost, outermost
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import DEVICE_WORK, FORWARD_STAGES
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace

_NOBODY = -1  # encloses the first call: calls are numbered from 0


@dataclass
class MatchedCalls:
    """The calls that explain a sequence of operators; a call precedes the calls inside it."""

    classes: Sequence[str]  # the class of each module of the tree
    # the module of each call; -1 for the first, which encloses all
    module: list[int] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)  # the enclosing call of each
    runs: list[bool] = field(default_factory=list)  # whether each runs operators of its own
    claimed: list[int] = field(default_factory=list)  # the call of each identifying operator
    _counts: Counter[tuple[int, str]] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, root: ModuleShape, owned: list[OwnedOperator], count: int, classes: Sequence[str]
    ) -> "MatchedCalls":
        """The calls of an alignment of so many operators."""
        calls = cls(classes, claimed=[0] * count)
        calls._add(root, 0, owned, _NOBODY)
        return calls

    def _add(self, part: ModuleShape, depth: int, owned: list[OwnedOperator], outer: int) -> None:
        """A call of a module, which runs some operators, and the calls inside it."""
        number = len(self.module)
        self.module.append(part.module)
        self.outer.append(outer)
        self.runs.append(part.own != 0)
        inside = [operator for operator in owned if len(operator.path) > depth + 1]
        inner = [list(group) for _, group in groupby(inside, key=lambda operator: operator.keys[depth + 1])]
        ambiguous = _ambiguous(part, {rows[0].path[depth + 1] for rows in inner})
        for rows in inner:
            child, first, end = rows[0].path[depth + 1], rows[0].row, rows[-1].row + 1
            if child.shape not in ambiguous:
                self.claimed[first:end] = [len(self.module)] * (end - first)
                self._add(child, depth + 1, rows, number)

    def class_of(self, call: int) -> str:
        """The class of the module that a call calls, empty for the first call."""
        module = self.module[call]
        return self.classes[module] if module >= 0 else ""

    def role_of(self, call: int) -> Role:
        """What a call runs if it is one of a leaf."""
        return role_of(self.class_of(call))

    def is_repeated(self, call: int) -> bool:
        """Whether this is a branch, and the call that runs it has more branches of its class in it."""
        if self.outer[call + 1 : call + 2] != [call] or self.class_of(call) in CONTAINERS:
            return False
        if not self._counts:
            self._counts = Counter(map(self._place, range(len(self.outer))))
        return self._counts[self._place(call)] > 1

    def _place(self, call: int) -> tuple[int, str]:
        """The call that runs a call, which no container does, and the class of what it runs."""
        outer = self.outer[call]
        while outer > 0 and self.class_of(outer) in CONTAINERS:
            outer = self.outer[outer]
        return outer, self.class_of(call)

    def chain(self, call: int) -> list[int]:
        """A call and its enclosing calls, outermost first."""
        return chain_of(call, self.outer.__getitem__)


def _ambiguous(part: ModuleShape, called: set[ModuleShape]) -> set[int]:
    """Shapes of leaves of which only some are called: which ones is unknown, so none is chosen."""
    leaves = {child for child in part.children if child.is_leaf}
    return {leaf.shape for leaf in leaves & called} & {leaf.shape for leaf in leaves - called}


# -- operators between calls

_MOST_OF_A_LEAF = 16  # operators that one call of a leaf runs


@dataclass
class _Gap:
    """A run of unidentified operators, from `first` up to `end`, between two calls."""

    first: int
    end: int
    before: int
    after: int


def owners(calls: MatchedCalls, positions: Sequence[int], names: Sequence[str]) -> list[int]:
    """The call that runs each of `names`; call 0, which stands for no module, outside all calls.

    `positions` has those of the identifying operators, ascending.
    """
    owner = [0] * len(names)
    claims = [(place, call) for place, call in zip(positions, calls.claimed, strict=True) if call]
    for position, call in claims:
        owner[position] = call
    gaps = [
        _Gap(start + 1, end, before, after)
        for (start, before), (end, after) in pairwise([(-1, 0), *claims, (len(names), 0)])
    ]
    _give_helpers(gaps, owner, calls, names)
    _give_common(gaps, owner, calls, names)
    for gap in gaps:
        owner[gap.first : gap.end] = [_between(gap, calls)] * (gap.end - gap.first)
    return owner


def _give_helpers(gaps: list[_Gap], found: list[int], calls: MatchedCalls, names: Sequence[str]) -> None:
    """Assign adjacent operators that belong to the role of an identifying operator."""
    for gap in gaps:
        before = re.compile(calls.role_of(gap.before).trail)
        after = re.compile(calls.role_of(gap.after).lead)
        while gap.first < gap.end and before.search(names[gap.first]):
            found[gap.first] = gap.before
            gap.first += 1
        while gap.first < gap.end and after.search(names[gap.end - 1]):
            gap.end -= 1
            found[gap.end] = gap.after


def _give_common(gaps: list[_Gap], found: list[int], calls: MatchedCalls, names: Sequence[str]) -> None:
    """Assign what all calls of a class have in common around them: leaves first, then blocks.

    Classes with the most varied surroundings come first: they are the most certain, and narrow what
    is left for others.
    """
    for edges in (_leaf_edges, _block_edges):
        sides: dict[tuple[bool, str], list[tuple[_Gap, int]]] = defaultdict(list)
        for gap in gaps:
            for is_after, call in edges(gap, calls, names):
                sides[is_after, calls.class_of(call)].append((gap, call))
        for side in sorted(sides, key=lambda side: -len({_text(gap, names) for gap, _ in sides[side]})):
            _take_common(sides[side], *side, found, names)


def _leaf_edges(gap: _Gap, calls: MatchedCalls, names: Sequence[str]) -> Iterator[tuple[bool, int]]:
    """Leaves adjacent to a gap that run more than one operator, and their side of the gap."""
    for is_after, call, other, position in (
        (True, gap.before, gap.after, gap.first - 1),
        (False, gap.after, gap.before, gap.end),
    ):
        adjacent = 0 <= position < len(names) and call not in calls.chain(other)
        if adjacent and calls.runs[call]:
            whole = re.search(calls.role_of(call).whole, plain(names[position]))
            if not whole or not ONE_OPERATOR.search(calls.class_of(call)):
                yield is_after, call


def _block_edges(gap: _Gap, calls: MatchedCalls, names: Sequence[str]) -> Iterator[tuple[bool, int]]:
    """The repeated blocks that end before a gap or begin after it."""
    ending, starting = calls.chain(gap.before), calls.chain(gap.after)
    shared = sum(before == after for before, after in zip(ending, starting, strict=False))
    for is_after, chain in ((True, ending), (False, starting)):
        for call in chain[shared:]:
            if calls.is_repeated(call):
                yield is_after, call
                break


def _take_common(
    edges: list[tuple[_Gap, int]], is_after: bool, name: str, found: list[int], names: Sequence[str]
) -> None:
    """Assign the operators that all gaps have in common on one side to the calls there."""
    edge = edges[0][0]
    is_open = 0 in (edge.before, edge.after)  # no leaf runs all before the first call, or after the last
    if len(edges) == 1 and is_open and edge.end - edge.first > _MOST_OF_A_LEAF:
        return
    texts = [_text(gap, names)[:: 1 if is_after else -1] for gap, _ in edges]
    count = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False)))
    if is_after and role_around(name):  # what is added to a block's result is added around it
        count = next((n for n in range(count) if plain(texts[0][n]) == "add"), count)
    for gap, call in edges:
        first = gap.first if is_after else gap.end - count
        found[first : first + count] = [call] * count
        gap.first += count * is_after
        gap.end -= count * (not is_after)


def _text(gap: _Gap, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[gap.first : gap.end])


def _between(gap: _Gap, calls: MatchedCalls) -> int:
    """The call that runs what is between two other calls."""
    ending, starting = calls.chain(gap.before), calls.chain(gap.after)
    if len(ending) == 1 or len(starting) == 1:  # before the first, or after the last
        return _outermost(ending + starting[1:], calls)
    shared = sum(before == after for before, after in zip(ending, starting, strict=False))
    around = ending[shared - 1]
    block = ending[shared] if len(ending) > shared + 1 else around
    follower = starting[shared] if len(starting) > shared else around
    name = calls.class_of(block)
    again = name == calls.class_of(follower) and name not in CONTAINERS
    return block if calls.class_of(around) in CONTAINERS or again else around


def _outermost(chain: list[int], calls: MatchedCalls) -> int:
    """The outermost call of a chain that can run operators of its own."""
    inner = [call for call in chain[1:] if calls.class_of(call) not in CONTAINERS]
    return inner[0] if inner else 0


# -- the module calls of a sequence, and the operators between them


def from_tree(trace: Trace) -> Evidence | None:
    """Modules from the model tree in the trace's metadata, matched with operators by name.

    They come with the module of each identifying event and the number of forward calls; None
    without a tree. The trace has launches, backward links, steps and stages.
    """
    modules = tree_modules(trace.metadata.model)
    if not modules:
        return None
    matcher = _Matcher(trace, modules)
    forward = forward_rows(trace, matcher.recognized)
    matcher.claim(forward)
    matcher.claim_again(forward, recomputed_rows(trace, matcher.recognized))
    return Evidence("matched", modules, matcher.claims, matcher.calls)


@dataclass
class _MatchedPass:
    """The result for one pass: the module of each operator, and those of its calls."""

    modules: Ids
    called: Ids


class _Matcher:
    """The events claimed so far for the modules of a tree.

    `recognized` are events whose name matches the role of a module, `claims` has the module of each
    identifying event, or -1, shape (events,), and `calls` the number of those of each module.
    """

    def __init__(self, trace: Trace, modules: Sequence[Module]) -> None:
        self._trace = trace
        self._tree = complete(modules)
        self._modules = self._tree.modules
        self._names = trace.events.text("name")
        self._classes = [class_name(module) for module in self._modules]
        self._roles = Roles(self._modules, _work_names(trace))
        self._root = root_shape(self._modules, self._roles, self._tree.doubtful)
        self._aligner = Aligner(self._root, self._roles.sure, self._roles.all_sizes)
        self.recognized = self._names.where(lambda name: self._roles.bits_of(name) != 0)
        self.claims = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(modules), np.int64)

    def claim(self, passes: Sequence[Rows]) -> None:
        """Match the forward pass of each step; equal passes are matched once."""
        known: dict[bytes, _MatchedPass] = {}
        inside = names_inside(self._trace, self._opaque(passes))
        for rows in passes:
            key = self._names.codes[rows].tobytes()
            if key not in known:
                known[key] = self._match(rows, inside)
            self.claims[rows] = np.append(self._tree.origin, -1)[known[key].modules]
            called = known[key].called
            called = self._tree.origin[called[self._tree.own[called]]]
            self.calls += np.bincount(called, minlength=len(self.calls))

    def claim_again(self, forward: Sequence[Rows], recomputed: Sequence[Rows]) -> None:
        """Recomputed operators get the module of the forward operator that they repeat."""
        nodes = np.flatnonzero(is_backward(self._trace.events))
        passes = {self._step(rows): rows for rows in forward}
        for rows in recomputed:
            origin = passes.get(self._step(rows), rows[:0])
            first = repeated_rows(self._names.codes, nodes, origin, rows)
            self.claims[rows] = np.where(first >= 0, self.claims[first], -1)

    def _step(self, rows: Rows) -> int:
        return int(self._trace.events["step"][rows[0]])

    def _opaque(self, passes: Sequence[Rows]) -> Mask:
        """Operators with an uninformative name: what they run may identify them."""
        opaque = np.zeros(len(self._names), np.bool_)
        for rows in passes:
            opaque[rows] = True
        named = self._names.where(lambda name: name.startswith("aten::"))
        return opaque & ~self.recognized & ~named

    def _match(self, rows: Rows, inside: Mapping[int, set[int]]) -> _MatchedPass:
        bits = [self._bits_of(event, inside.get(event, ())) for event in rows.tolist()]
        positions = [position for position, value in enumerate(bits) if value]
        identifying = [bits[position] for position in positions]
        owned = self._aligner.explain(identifying)
        calls = MatchedCalls.of(self._root, owned, len(identifying), self._classes)
        names = [self._names[row] or "" for row in rows]
        modules = np.array(calls.module)[owners(calls, positions, names)]
        # A loss outside the modules of the tree belongs to the training loop.
        loss = self._trace.events.text("stage").mask("loss")[rows] & (np.array(bits) == 0)
        return _MatchedPass(np.where(loss, -1, modules), np.array(calls.module[1:], np.int64))

    def _bits_of(self, event: int, inside: Iterable[int]) -> int:
        """Bits of the roles that an operator may play, and of the sizes of matching leaves."""
        bits = 0
        for code in (int(self._names.codes[event]), *inside):
            bits |= self._roles.bits_of(self._names.values[code])
        if bits & self._roles.sure and self._roles.all_sizes:
            bits |= self._roles.sizes_of(bits, self._trace.event_arguments(event).get("Input Dims", ()))
        return bits


def _work_names(trace: Trace) -> Sequence[str]:
    """The names of operators and device work outside of backward."""
    events = trace.events
    work = events.text("category").mask("cpu_op", *DEVICE_WORK)
    work &= ~events.text("stage").mask("backward")
    return events.text("name").take(work).compact().values


# -- the operator sequence of each pass, and pieces of it that are repeated


def forward_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The outermost operators of the forward pass of each step: one array of event ids per step.

    A wrapper (a compiled region, a range) is replaced by the operators inside it, unless it is an
    ATen operator or its name matches the role of a module: `recognized`, shape (events,).
    """
    events = trace.events
    chosen = events.text("stage").mask(*FORWARD_STAGES) & (events["track"] == main_track(trace))
    return _by_step(trace, _pass_operators(trace, chosen, recognized))


def recomputed_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The same for forward work repeated in backward."""
    return _by_step(trace, _pass_operators(trace, trace.events["recompute"] == 1, recognized))


def _pass_operators(trace: Trace, chosen: Mask, recognized: Mask) -> Mask:
    """The outermost operators among the chosen events, and launches outside operators."""
    events = trace.events
    operator = chosen & events.text("category").mask("cpu_op")
    work = operator | (chosen & mask_of(trace["launches"]["cpu_event"], len(events)))
    named = events.text("name").where(lambda name: name.startswith("aten::"))
    empty = ~holds(events["parent"], work & recognized)
    return outermost(events["parent"], work & (named | recognized | empty))


def _by_step(trace: Trace, chosen: Mask) -> list[Rows]:
    step = trace.events["step"]
    return list(rows_by_key(step, np.flatnonzero(chosen & (step >= 0))).values())


def names_inside(trace: Trace, opaque: Mask) -> dict[int, set[int]]:
    """Name codes of the events and kernels that each opaque event contains or launches."""
    events = trace.events
    holder = at_launch(trace, innermost(events["parent"], opaque))
    inner = np.flatnonzero((holder >= 0) & (holder != events["id"]))
    pairs = np.unique(np.stack([holder[inner], events["name"][inner]]), axis=1)
    codes_inside: dict[int, set[int]] = {}
    for event, name in zip(*pairs.tolist(), strict=True):
        codes_inside.setdefault(event, set()).add(name)
    return codes_inside


# -- recomputed operators

_MIN_EQUAL = 0.5  # of the operators of a piece: else it repeats no piece of the pass


def repeated_rows(names: IntArray, nodes: Rows, forward: Rows, again: Rows) -> Rows:
    """The id of the forward operator that each of `again`, recomputed in the same step, repeats, or -1.

    Autograd repeats pieces of the forward pass, the last piece first. Each piece is located by the
    names of its operators, at the last position in the pass where most of them agree.

    Args:
        names: a number for the name of each event, shape (events,).
        nodes: event ids of gradient nodes, ascending; pieces lie between them.
        forward: event ids of the outermost forward operators of a step, in order.
    """
    result = np.full(len(again), -1, np.intp)
    done = np.searchsorted(nodes, again)
    for piece in np.split(np.arange(len(again)), np.flatnonzero(np.diff(done)) + 1):
        start, equal = _position(names[forward], names[again[piece]])
        if equal.mean() >= _MIN_EQUAL:
            first, last = np.flatnonzero(equal)[[0, -1]]
            result[piece[first : last + 1]] = forward[start + first : start + last + 1]
            forward = forward[: start + first]
    return result


def _position(names: IntArray, piece: IntArray) -> tuple[int, Mask]:
    """The last position in `names` where most of `piece` agrees, and which elements agree.

    The piece may overlap either end of `names`.
    """
    edge = np.full(len(piece), -2)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([edge, names, edge]), len(piece))
    equal = windows == piece
    count = equal.sum(axis=1)
    start = len(count) - 1 - int(count[::-1].argmax())
    return start - len(piece), equal[start]
