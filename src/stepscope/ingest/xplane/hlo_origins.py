"""The operations from which XLA made an instruction, each with its Python frame and its share.

JAX writes for each operation where it was traced: its named scope and its stack. XLA fuses many
operations into one instruction; the members of the fused computation keep what JAX wrote. The share
of a member is that of its operations and of the bytes that it moves; shares add up to one.

Source: hlo.proto and xla_data.proto (https://github.com/openxla/xla, xla), messages OpMetadata and
StackFrameIndexProto. DEEPCONTEXT section 4.3: fused operators stand below their original ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from stepscope.ingest.xplane.hlo_work import Work
from stepscope.ingest.xplane.protobuf import BYTES, Span, int32
from stepscope.ingest.xplane.xspace import Source
from stepscope.trace.interner import Interner

T = TypeVar("T")
_MOST_FRAMES = 256


class SourceFrame(NamedTuple):
    """One Python frame; `parent` is the number of the frame that called it, -1 at the outermost."""

    parent: int
    function: str
    file: str
    line: int


SourceFrames = Interner[SourceFrame]


class Origin(NamedTuple):
    """An operation as JAX traced it: its scope, the number of its frame (-1 if unknown), share."""

    scope: str
    frame: int
    share: float


class FrameIndex:
    """The stacks to which a program's instructions refer by number; they are added to `frames`."""

    def __init__(self, source: Source, module: Span, frames: SourceFrames) -> None:
        self._files: list[str] = []
        self._functions: list[str] = []
        self._locations: list[tuple[int, int, int]] = []
        self._frames: list[tuple[int, int]] = []
        self._all, self._known = frames, dict[int, int]()
        for index in source.inner(module, 17):
            for item in source.fields(index):
                if item.kind == BYTES:
                    self._add(source, item.number, Span(item.value, item.end))

    def _add(self, source: Source, number: int, span: Span) -> None:
        if number == 1:
            self._files.append(source.text(*span))
        elif number == 2:
            self._functions.append(source.text(*span))
        elif number == 3:
            file, function, line = (source.number(span, part) for part in (1, 2, 3))
            self._locations.append((file, function, int32(line)))
        elif number == 4:
            self._frames.append((source.number(span, 1), source.number(span, 2)))

    def place(self, frame: int) -> str:
        """`file:line` of the innermost frame, empty if not recorded; numbers count from 1."""
        _, file, line = self._at(frame)
        return f"{file}:{line}" if file else ""

    def number(self, frame: int, file: str, line: int) -> int:
        """The number in `frames` of a frame of this program, else of a place alone; else -1."""
        if _item(self._frames, frame) is None:
            return self._all[SourceFrame(-1, "", file, line)] if file else -1
        stack: list[int] = []
        while frame not in self._known and len(stack) < _MOST_FRAMES:
            found = _item(self._frames, frame)
            if found is None:
                break
            stack.append(frame)
            frame = found[1]
        number = self._known.get(frame, -1)
        for each in reversed(stack):
            number = self._all[SourceFrame(number, *self._at(each))]
            self._known[each] = number
        return number

    def _at(self, frame: int) -> tuple[str, str, int]:
        """Function, file and line of a frame."""
        location, _ = _item(self._frames, frame) or (0, 0)
        file, function, line = _item(self._locations, location) or (0, 0, 0)
        return _item(self._functions, function) or "", _item(self._files, file) or "", line


def _item(values: Sequence[T], number: int) -> T | None:
    return values[number - 1] if 0 < number <= len(values) else None


def own_origin(scope: str, frame: int) -> tuple[Origin, ...]:
    """The origins of an instruction that is no fusion."""
    return (Origin(scope, frame, 1.0),) if scope or frame >= 0 else ()


def origins_of_members(members: Iterable[tuple[Sequence[Origin], Work]]) -> tuple[Origin, ...]:
    """The origins of a computation from those of its members, by operations and bytes moved."""
    found: dict[tuple[str, int], float] = {}
    for origins, work in members:
        weight = sum(part for part in (work.flops, work.bytes) if part > 0)
        for origin in origins if work.kind else ():
            key = origin.scope, origin.frame
            found[key] = found.get(key, 0.0) + max(weight, 1.0) * origin.share
    whole = sum(found.values())
    return tuple(Origin(*key, weight / whole) for key, weight in found.items())
