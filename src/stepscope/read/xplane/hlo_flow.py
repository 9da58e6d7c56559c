"""What the instructions of a program are for, by the values that they take and that take theirs.

JAX marks the two passes of a differentiated function (`jvp(…)`, `transpose(…)`). What else a compiled
training step does is not marked: it prepares data, updates parameters, adds up metrics. Values tell these
apart, wherever XLA runs them: an update takes gradients, and a pass takes data. Values are followed through
fusions, branches and loops, to which all members of a tuple belong one by one. What an iteration of a loop
hands to the next one is followed only to see what a loop does: one that trains takes parameters that the
iteration before updated; one that does not adds up the gradients of micro-batches.

Source: hlo.proto (https://github.com/openxla/xla, xla/service); the order of the operands of
`while` and `conditional` is that of HloInstruction.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf
from typing import NamedTuple

from stepscope.read.xplane.hlo_inputs import BACKWARD, BY_ELEMENT, DIFFERENTIATED, argument_names
from stepscope.read.xplane.hlo_work import HloNode
from stepscope.read.xplane.xspace import XSpaceFile
from stepscope.trace.schema import ROLES

DATA, CONSTANT, PASS, UPDATE, GRADIENT, RESULT = ROLES
_MOVES = frozenset(("bitcast", "copy", "get-tuple-element", "parameter", "tuple"))
_PRODUCTS = ("dot", "convolution", "custom-call")
FUSED = ("fusion", "call", "async-start")
_DEEPEST = 100  # of these inside each other; XLA makes few
_MOST_REPEATS = 1 << 53  # of loops in each other; loops that are made to do harm have thousands of digits
_RUN_OTHERS = frozenset((*FUSED, "while", "conditional"))
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,9})"')
_Values = Mapping[int, Sequence[int]]


class Loops(NamedTuple):
    """How often the loops of a program compute gradients, those outside of the two passes."""

    steps: int = 1  # updates of parameters in one run of the program; 0 if unknown, 1 without a loop
    micro_batches: int = 1  # gradients that are added up for each of them; likewise

    def repeated(self, trips: int, trains: bool) -> "Loops":
        """In a loop around them."""
        if trains:
            return self._replace(steps=min(trips * self.steps, _MOST_REPEATS))
        return self._replace(micro_batches=min(trips * self.micro_batches, _MOST_REPEATS))


class _Member(NamedTuple):
    node: HloNode
    scope: str
    values: range
    called: tuple[int, ...]


class ProgramFlow:
    """The values of a program, and which instruction takes which."""

    def __init__(self, source: XSpaceFile) -> None:
        self._source = source
        self._sizes: list[int] = []  # elements of each value
        self._products: set[int] = set()
        self._members: dict[int, list[_Member]] = {}  # by computation
        self._parameters: dict[int, dict[int, _Member]] = {}  # the same, by their numbers
        self._roots: dict[int, _Member] = {}
        self._users: dict[int, list[int]] = {}
        self._next: list[tuple[int, int]] = []  # from an iteration to the next
        self._joints: dict[range, int] = {}  # between values and some that each of them makes
        self._forward: set[int] = set()
        self._backward: set[int] = set()

    def add(self, computation: int, root: int, nodes: Sequence[HloNode], scopes: Sequence[str]) -> None:
        """Add a computation, after those that it calls; nodes come before their users."""
        by_id: dict[int, _Member] = {}
        members: list[_Member] = []
        for node, scope in zip(nodes, scopes, strict=True):
            called = tuple(number for number in dict.fromkeys(node.called) if number in self._members)
            member = _Member(node, scope, self._new_values(node), called)
            self._connect(member, [by_id[operand].values for operand in node.operands if operand in by_id])
            self._mark(member)
            by_id[node.id] = member
            members.append(member)
        self._members[computation] = members
        inside = (member for member in members if member.node.opcode == "parameter")
        self._parameters[computation] = {self._source.number(one.node.span, 9): one for one in inside}
        if root in by_id:
            self._roots[computation] = by_id[root]

    def _new_values(self, node: HloNode) -> range:
        first = len(self._sizes)
        self._sizes += [array.elements for array in node.shape] or [0]
        return range(first, len(self._sizes))

    def _mark(self, member: _Member) -> None:
        opcode = member.node.opcode
        if opcode in _PRODUCTS:
            self._products.update(member.values)
        if opcode in _MOVES or (opcode in _RUN_OTHERS and member.called):
            return
        if BACKWARD in member.scope:
            self._backward.update(member.values)
        elif DIFFERENTIATED in member.scope:
            self._forward.update(member.values)

    # -- which value goes where

    def _connect(self, member: _Member, operands: Sequence[range]) -> None:
        node, values = member.node, member.values
        if node.opcode == "get-tuple-element" and operands:
            index = self._source.number(node.span, 13)
            whole = operands[0]
            self._all(whole[index : index + 1] or whole, values)
        elif node.opcode in _RUN_OTHERS and member.called:
            self._call(member, operands)
        elif node.opcode in BY_ELEMENT and len(operands) == len(values):
            for operand, value in zip(operands, values, strict=True):
                self._all(operand, range(value, value + 1))
        else:
            for operand in operands:
                self._each(operand, values)

    def _call(self, member: _Member, operands: Sequence[range]) -> None:
        for place, number in enumerate(member.called):
            is_branch = member.node.opcode == "conditional"
            taken = operands[place + 1 : place + 2] if is_branch else operands
            for own, values in enumerate(taken):
                if inside := self._parameters[number].get(own):
                    self._each(values, inside.values)
            root = self._roots.get(number)
            if root is None or (member.node.opcode == "while" and place):
                continue
            self._each(root.values, member.values)
            if member.node.opcode == "while":
                for inside in self._parameters[number].values():
                    self._next += zip(root.values, self._source.spend(inside.values), strict=False)

    def _each(self, taken: range, made: range) -> None:
        """Element by element, where both have as many."""
        if len(taken) != len(made):
            self._all(taken, made)
            return
        for source, value in zip(taken, self._source.spend(made), strict=True):
            self._users.setdefault(source, []).append(value)

    def _all(self, taken: range, made: range) -> None:
        if len(made) > 1:  # through one value between them, as both may have many elements
            if made not in self._joints:
                self._joints[made] = len(self._sizes)
                self._users[len(self._sizes)] = list(self._source.spend(made))
                self._sizes.append(-1)
            made = range(self._joints[made], self._joints[made] + 1)
        for value in self._source.spend(taken):
            self._users.setdefault(value, []).extend(made)

    # -- what follows

    def roles(
        self, entry: int, updated: Iterable[str], scopes: Mapping[int, Sequence[str]]
    ) -> dict[int, list[str]]:
        """What each instruction is for, by computation; empty for those of the two passes.

        `updated` are the arguments that the program updates with the help of gradients; the scope of a
        fusion is that of its largest member.
        """
        if not self._backward:
            return {}
        of_value, bodies = self._roles_of_values(entry, updated), {loop.body for loop in self._loops}
        return {
            number: [
                self._role(self._largest(member, scope), of_value, bodies)
                for member, scope in zip(members, scopes[number], strict=True)
            ]
            for number, members in self._members.items()
        }

    def _role(self, member: _Member, of_value: Mapping[int, str], bodies: set[int]) -> str:
        """Of a loop that of its results, of which the first is its counter."""
        if not bodies.isdisjoint(member.called):
            return RESULT
        found = [of_value.get(value, "") for value in member.values]
        return next((role for role in found if role != RESULT), found[0])

    def _largest(self, member: _Member, scope: str) -> _Member:
        """Of a fusion the last member with its scope, else the instruction itself."""
        for _ in range(_DEEPEST):
            called = member.called if member.node.opcode in FUSED else ()
            inside = chain.from_iterable(reversed(self._source.spend(self._members[one])) for one in called)
            found = next((m for m in inside if m.scope == scope and m.node.opcode not in _MOVES), None)
            if found is None:
                break
            member = found
        return member

    def _roles_of_values(self, entry: int, updated: Iterable[str]) -> dict[int, str]:
        passes = self._forward | self._backward
        takers = _reversed(self._users)
        of_gradients = _reached(self._users, self._backward, passes)
        of_forward = _reached(self._users, self._forward, passes)
        to_pass = _reached(takers, passes, passes)
        to_update = _reached(takers, of_gradients, passes | of_gradients)
        state = self._state(takers, of_gradients, passes)
        of_data = _reached(self._users, self._data(entry, set(updated), state), passes)
        sums = set().union(*(loop.gradients for loop in self._loops if not loop.trains))
        result: dict[int, str] = {}
        for value in range(len(self._sizes)):
            if value in passes:
                continue
            if value in of_gradients:
                result[value] = GRADIENT if value in sums else UPDATE
            elif value in to_pass and value in of_forward:
                result[value] = PASS
            elif value in to_pass:
                result[value] = DATA if value in of_data else CONSTANT
            elif value in to_update and value not in of_forward:
                result[value] = UPDATE
            else:
                result[value] = RESULT
        return result

    def loops(self, entry: int) -> Loops:
        """How often one run of the program computes gradients, in loops whose length is known."""
        trains = {loop.body: loop.trains for loop in self._loops}
        of_run: dict[int, Loops] = {}
        for computation, members in self._members.items() if trains else ():
            found = [Loops()]
            for member in members:
                for body in member.called:
                    found.append(of_run[body])
                    if body in trains:
                        found.append(of_run[body].repeated(self._trips(member.node), trains[body]))
            of_run[computation] = max(found, key=lambda loops: loops.steps * loops.micro_batches or inf)
        return of_run.get(entry, Loops())

    def _trips(self, loop: HloNode) -> int:
        self._source.spend(range(*loop.span)[::8])  # a step for each eight bytes
        texts = (self._source.text(*span) for span in self._source.inner(loop.span, 43))
        found = [_TRIPS.search(text) for text in texts]
        return next((int(match[1]) for match in found if match), 0)

    @cached_property
    def _loops(self) -> "list[_GradientLoop]":
        """The loops around gradients, outside of the two passes."""
        passes = self._forward | self._backward
        of_gradients = _reached(self._users, self._backward, passes)
        takers = _reversed(self._users, self._next)
        found: list[_GradientLoop] = []
        for member in chain.from_iterable(self._members.values()):
            if member.node.opcode == "while" and member.called and DIFFERENTIATED not in member.scope:
                inside = self._inside(member.called)
                if inside & self._backward:
                    taken = _reached(takers, self._forward & inside, within=inside)
                    gradients = of_gradients & inside
                    found.append(_GradientLoop(member.called[0], gradients, bool(gradients & taken)))
        return found

    def _inside(self, called: Iterable[int]) -> set[int]:
        """The values of some computations, and of those that they call."""
        seen: set[int] = set()
        waiting = list(called)
        while waiting:
            computation = waiting.pop()
            if computation not in seen:
                seen.add(computation)
                waiting += [number for member in self._members[computation] for number in member.called]
        members = chain.from_iterable(self._source.spend(self._members[one]) for one in seen)
        return {value for member in members for value in self._source.spend(member.values)}

    def _state(self, takers: _Values, of_gradients: set[int], passes: Collection[int]) -> set[int]:
        """Values that an update changes: it takes them as they are, element by element."""
        apart = self._products.union(passes)
        found = of_gradients - self._products
        waiting = list(found)
        while waiting:
            value = waiting.pop()
            for taker in takers.get(value, ()):
                is_new = taker not in found and taker not in apart
                if is_new and self._sizes[taker] == self._sizes[value]:
                    found.add(taker)
                    waiting.append(taker)
        return found

    def _data(self, entry: int, updated: set[str], state: set[int]) -> Iterator[int]:
        """The arguments of the program that are no parameters; none if no parameters are known."""
        arguments = self._parameters.get(entry, {}).values()
        changed = [
            not state.isdisjoint(argument.values)
            or not updated.isdisjoint(argument_names(self._source, argument.node.span))
            for argument in arguments
        ]
        for argument, is_changed in zip(arguments, changed, strict=True):
            if any(changed) and not is_changed:
                yield from argument.values


class _GradientLoop(NamedTuple):
    """A loop around gradients: its body, the values made from gradients, whether it trains."""

    body: int
    gradients: set[int]
    trains: bool


def _reached(
    users: _Values, seeds: Iterable[int], passes: Collection[int] = (), within: Collection[int] | None = None
) -> set[int]:
    """Values that are made from some values, not through a pass, and within others."""
    found: set[int] = set()
    waiting = list(seeds)
    while waiting:
        for value in users.get(waiting.pop(), ()):
            if value not in found and value not in passes and (within is None or value in within):
                found.add(value)
                waiting.append(value)
    return found


def _reversed(users: _Values, further: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
    pairs = ((value, taker) for value, takers in users.items() for taker in takers)
    result: dict[int, list[int]] = {}
    for value, taker in chain(pairs, further):
        result.setdefault(taker, []).append(value)
    return result


_OF_NOTHING = ("parameter", "constant")  # named by arguments, not by operations


def lenders_of(nodes: Sequence[HloNode], named: Sequence[bool]) -> list[int]:
    """The instruction whose metadata each one has: itself if it is named, or none is."""
    row_of = {node.id: row for row, node in enumerate(nodes)}
    operands = [[row_of[number] for number in node.operands if number in row_of] for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for row, used in enumerate(operands):
        for operand in used:
            users[operand].append(row)
    lenders = [
        row if has and node.opcode not in _OF_NOTHING else -1
        for row, (node, has) in enumerate(zip(nodes, named, strict=True))
    ]
    _lend(lenders, users, reversed(range(len(nodes))))
    _lend(lenders, operands, iter(range(len(nodes))))
    return [row if lender < 0 else lender for row, lender in enumerate(lenders)]


def _lend(lenders: list[int], sources: Sequence[Sequence[int]], order: Iterator[int]) -> None:
    """Give each instruction without a lender that of its first source that has one."""
    for row in order:
        if lenders[row] < 0:
            lenders[row] = next((lenders[source] for source in sources[row] if lenders[source] >= 0), -1)
