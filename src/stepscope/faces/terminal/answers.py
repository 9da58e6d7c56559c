"""Answers about files that were asked before: given again without opening the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stepscope.base.typed_data import decode
from stepscope.faces.terminal.source import InputFile, ranks_without_steps, warn_of_ranks

if TYPE_CHECKING:
    from stepscope.trace.cache import Key
    from stepscope.trace.trace import Trace

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class AnswerKind(Generic[Answer]):
    """A kind of answer."""

    name: str  # of the kind
    type: type[Answer]  # of the answer, which JSON can hold
    packages: tuple[str, ...]  # of the code that makes it, besides what opens the file


class _Kept(msgspec.Struct, Generic[Answer], frozen=True):
    """An answer, and the ranks of the file that have no recorded step."""

    answer: Answer
    ranks_without_steps: list[int]


def answer_of(
    kind: AnswerKind[Answer], file: InputFile, asked: tuple[Any, ...], make: Callable[[Trace], Answer]
) -> Answer:
    """An answer about a file, from the cache if it was made before; ranks without steps on stderr.

    Raises:
        StepscopeError: if the file cannot be read, or `make` raises it.
    """
    key = _key(kind, file, asked)
    kept = _fetch(kind, key) if key else None
    if kept is None:
        trace = file.open()
        kept = _Kept(make(trace), ranks_without_steps(trace))
        if key and key == _key(kind, file, asked):  # else the file changed while it was read
            _keep(kind, key, kept)
    warn_of_ranks(file.path, kept.ranks_without_steps)
    return kept.answer


def calibrations() -> tuple[tuple[str, int], ...]:
    """What was measured on this machine, which predictions rest on: each file and its time."""
    from stepscope.models.calibration import kept_calibrations

    return tuple((path.name, path.stat().st_mtime_ns) for path in kept_calibrations())


def _key(kind: AnswerKind[Answer], file: InputFile, asked: tuple[Any, ...]) -> Key | None:
    from stepscope.facts.load import key_of_text

    if not file.cache:
        return None
    capture = file.graph_capture and (file.graph_capture, Path(file.graph_capture).stat().st_mtime_ns)
    what = (kind.name, file.path, file.range_name, capture, *asked)  # answers name the path
    return key_of_text(Path(file.path), file.model, file.as_recorded, what, kind.packages)


def _fetch(kind: AnswerKind[Answer], key: Key) -> _Kept[Answer] | None:
    from stepscope.trace.cache import fetch_text

    text = fetch_text(key)
    try:
        return None if text is None else _decoded(kind, text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _keep(kind: AnswerKind[Answer], key: Key, kept: _Kept[Answer]) -> None:
    """Keep an answer, but not one that JSON cannot hold: numbers not finite, names not UTF-8."""
    from stepscope.trace.cache import keep_text

    try:
        text = msgspec.json.encode(kept)
        whole = _decoded(kind, text) == kept
    except (msgspec.MsgspecError, TypeError, RecursionError, UnicodeEncodeError):
        return
    if whole:
        keep_text(key, text)


def _decoded(kind: AnswerKind[Answer], text: bytes | str) -> _Kept[Answer]:
    return decode(text, _Kept[kind.type])  # type: ignore[name-defined]
