"""Detects training steps from what repeats in the program's loop.

The *boundary* is the repeating event that ends a step. A script may mark it itself. In training an
optimizer's step ends it. With several optimizers (a GAN's D and G, a critic stepped five times for each
generator step) it is the one that steps least often, and among equals the last in the iteration.

A program may create an optimizer for each client, task or epoch. The count goes on with the
next one of its class, until the earlier one steps again: then they step in turns. One that was
created before those that step is awaited: in meta-learning it ends a loop around theirs.

Where no optimizer steps, other events mark the iterations. From the most reliable to the least:
a DataLoader is asked for the next batch; a model is called after a backward pass; a model is
called. Among several models it is the one called least often, and among equals the first.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count

PATIENCE = 100  # cycles of the others, or of its own, without repeating: then it has left the loop
AWAITED = 500  # steps of others: 32 tasks of 10 steps each may lie between two of a meta-learner


class Kind(IntEnum):
    """What can end a step, from the least to the most reliable."""

    BARE_CALL = 1
    CALL = 2
    BACKWARD = 3
    BATCH = 4
    OPTIMIZER = 5
    MARK = 6


_STEPS = {
    Kind.BARE_CALL: "one call of {}, until the next call",
    Kind.CALL: "one call of {}, until the next call",
    Kind.BACKWARD: "one forward and backward pass, until the next forward pass",
    Kind.MARK: "what the script marks with stepscope.step()",
    Kind.BATCH: "one batch of a DataLoader, until the next batch is requested",
}


Holder = weakref.ref[object]


@dataclass(eq=False)
class StepBoundary:
    """An object that repeats in the loop and may end steps."""

    kind: Kind  # how it repeats
    name: str  # its class
    last: int  # when it last repeated, on the detector's clock
    count: int = 0  # how often it repeated
    longest: int = 0  # its longest period, on that clock
    holder: Holder | None = None  # the object that repeats, the latest of those that follow each other
    number: int = 0  # of that optimizer among those created

    def repeat(self, clock: int) -> None:
        self.count += 1
        self.longest = max(self.longest, clock - self.last)
        self.last = clock


class StepDetector:
    """Counts what repeats in the loop and finds the step boundary among it."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._known: weakref.WeakKeyDictionary[object, StepBoundary] = weakref.WeakKeyDictionary()
        self._latest: dict[str, StepBoundary] = {}  # of optimizers, by class
        self._own: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._created: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._numbers = count()
        self._clock = 0
        self.boundary: StepBoundary | None = None
        self.is_taken_over = False  # whether another optimizer goes on with the boundary's count

    def advance(self, thing: object, kind: Kind = Kind.OPTIMIZER) -> bool:
        """Count one repetition of `thing`, an optimizer or another; True where it ends a step."""
        self._clock += 1
        is_new = self.expect(thing, kind)
        if kind is Kind.OPTIMIZER:
            self._count_own(thing)
        boundary = self._known[thing]
        self.is_taken_over = is_new and boundary.count > 0 and boundary is self.boundary
        boundary.repeat(self._clock)
        self.boundary = self._choose()
        return self.boundary is boundary and self.boundary.count % self._every == 0

    def repeats_boundary(self, thing: object) -> bool:
        """As `advance`, in less time: nothing new is looked for."""
        boundary = self.boundary
        if boundary is None or self._known.get(thing) is not boundary:
            return False
        boundary.count += 1
        return boundary.count % self._every == 0

    def expect(self, thing: object, kind: Kind) -> bool:
        """Announce that `thing` is at work and may repeat; True on the first announcement."""
        if thing in self._known:
            return False
        name = type(thing).__name__
        is_optimizer = kind is Kind.OPTIMIZER
        self._known[thing] = (
            self._place_of(thing, name) if is_optimizer else StepBoundary(kind, name, self._clock)
        )
        return True

    def announce(self, optimizer: object) -> int:
        """It has been created and may step; its number in this order."""
        return self._created.setdefault(optimizer, next(self._numbers))

    @property
    def awaits_optimizer(self) -> bool:
        """Whether one that was created before those that step has yet to step."""
        created = list(self._created.items())
        stepped = [number for optimizer, number in created if optimizer in self._own]
        awaited = (
            number < max(stepped, default=0) for optimizer, number in created if optimizer not in self._own
        )
        return self._clock < AWAITED and any(awaited)

    def _place_of(self, optimizer: object, name: str) -> StepBoundary:
        """It goes on with the count of the latest of its class, unless it was created before that one."""
        latest, number = self._latest.get(name), self.announce(optimizer)
        if latest is not None and number > latest.number:
            latest.number, latest.holder = number, weakref.ref(optimizer)
            return latest
        own = StepBoundary(Kind.OPTIMIZER, name, self._clock, holder=weakref.ref(optimizer), number=number)
        self._latest.setdefault(name, own)
        return own

    def _count_own(self, optimizer: object) -> None:
        holder = self._known[optimizer].holder
        if holder is None or holder() is not optimizer:
            self._separate(optimizer)
        self._own[optimizer] = self._own.get(optimizer, 0) + 1

    def _separate(self, optimizer: object) -> None:
        """It steps again after another one went on with its count: each has its own from now on."""
        boundary, own = self._known[optimizer], self._own[optimizer]
        latest = self._latest[boundary.name]
        rest = replace(latest, count=latest.count - own)
        holder = rest.holder and rest.holder()
        if holder is not None:
            self._known[holder] = rest
        self._latest[boundary.name] = rest
        self._known[optimizer] = replace(boundary, count=own, holder=weakref.ref(optimizer))

    @property
    def boundary_name(self) -> str | None:
        """What a training step ends after: `AdamW.step`."""
        boundary = self.boundary
        return f"{boundary.name}.step" if boundary and boundary.kind is Kind.OPTIMIZER else None

    @property
    def trains(self) -> bool:
        """Whether an optimizer ends steps."""
        return self.boundary is not None and self.boundary.kind is Kind.OPTIMIZER

    @property
    def step_is(self) -> str | None:
        """What a step is, in words, and which other optimizers step in it."""
        if (boundary := self.boundary) is None:
            return None
        if boundary.kind is not Kind.OPTIMIZER:
            return _STEPS[boundary.kind].format(boundary.name)
        name = f"{boundary.name}.step"
        step = f"from one {name} to the next" if self._every == 1 else f"in {self._every} {name}s"
        stepping = (other for other in self._in_the_loop() if other.kind is Kind.OPTIMIZER and other.count)
        often = (
            (other.name, other.count / max(boundary.count, 1)) for other in stepping if other is not boundary
        )
        others = sorted({f"{name}.step ({max(round(times), 1)} per step)" for name, times in often})
        return f"everything {step}" + f"; other optimizers: {', '.join(others)}" * bool(others)

    @property
    def is_sure(self) -> bool:
        """Whether no more reliable boundary can still appear."""
        kind = self.boundary.kind if self.boundary else min(Kind)
        return not any(boundary.count == 0 and boundary.kind > kind for boundary in self._in_the_loop())

    @property
    def steps(self) -> int:
        return self.boundary.count // self._every if self.boundary else 0

    def _choose(self) -> StepBoundary:
        candidates = [boundary for boundary in self._in_the_loop() if boundary.count]
        best_kind = max(candidate.kind for candidate in candidates)
        alike = [candidate for candidate in candidates if candidate.kind == best_kind]
        if best_kind >= Kind.OPTIMIZER:
            return min(alike, key=lambda boundary: (boundary.count, -boundary.last))
        # An iteration ends as the next begins: its first event is one count ahead of the others.
        fewest = min(boundary.count for boundary in alike)
        return next(boundary for boundary in alike if boundary.count <= fewest + 1)

    def _in_the_loop(self) -> Iterator[StepBoundary]:
        all_known = list(self._known.values())
        for boundary in all_known:
            if self._clock - boundary.last < PATIENCE * max(len(all_known), boundary.longest):
                yield boundary


marked: list[Callable[[], object]] = []  # called for each `stepscope.step()` of the program


def step() -> None:
    """Mark the end of a step; without a recording in this process it does nothing.

    From the first call on only these calls end steps, so call it once per step in the training
    loop, on one thread: for a step that is several optimizer steps, or that no optimizer ends.

    Example:
        >>> step()
    """
    for note in tuple(marked):
        note()


class TrainingThread:
    """The thread in which an optimizer steps first; until one does, where something repeats first.

    Steps of other threads would cut those of this one, and a profiler that another thread stops
    crashes torch (2.13).
    """

    def __init__(self) -> None:
        self._ident: int | None = None
        self._trains = False
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @contextmanager
    def turn(self, kind: Kind, *, is_recording: bool) -> Iterator[bool]:
        """Whether an event of this thread counts; a running profiler ties the recording to its thread."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield self._takes(kind, is_recording)
        finally:
            self._lock.release()

    def is_current(self) -> bool:
        """Whether this is the thread; True before there is one."""
        return self._ident in (None, threading.get_ident())

    def at_its_end(self, action: Callable[[], object]) -> None:
        """Run `action` as the current thread ends, if it is still this one and not the main one."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and not hasattr(self._of_thread, "guard"):
            self._of_thread.guard = _Guard(lambda: self.is_current() and action())

    def _takes(self, kind: Kind, is_recording: bool) -> bool:
        trains = kind >= Kind.OPTIMIZER
        if not self.is_current() and (is_recording or self._trains or not trains):
            return False
        self._ident = threading.get_ident()
        self._trains = self._trains or trains
        return True


class _Guard:
    """Python deletes what is local to a thread in that thread, as it ends."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def __del__(self) -> None:
        with suppress(Exception):
            self._action()
