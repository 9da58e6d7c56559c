"""Answers about files that were asked before: given again without opening the trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stepscope.base.plugins import OUTSIDE
from stepscope.base.typed_data import decode
from stepscope.faces.terminal.source import InputFile, ranks_without_steps, warn_of_ranks

if TYPE_CHECKING:
    from stepscope.trace.cache import Key
    from stepscope.trace.trace import Trace

Answer = TypeVar("Answer")


class _Kept(msgspec.Struct, Generic[Answer], frozen=True):
    """An answer, and the ranks of the file that have no recorded step."""

    answer: Answer
    ranks_without_steps: list[int]


def answer_of(
    file: InputFile,
    name: str,
    type: type[Answer],
    packages: tuple[str, ...],
    asked: tuple[Any, ...],
    make: Callable[[Trace], Answer],
) -> Answer:
    """An answer about a file, from the cache if it was made before; ranks without steps on stderr.

    Args:
        name: of this kind of answer.
        type: of the answer, which JSON can hold.
        packages: of the code that makes it, besides what opens the file.
        asked: what else the answer depends on.

    Raises:
        StepscopeError: if the file cannot be read, or `make` raises it.
    """
    kind = _Kept[type]  # type: ignore[valid-type]
    key = _key(file, (name, *asked), packages)
    kept: _Kept[Answer] | None = _fetch(kind, key) if key else None
    if kept is None:
        trace = file.open()
        kept = _Kept(make(trace), ranks_without_steps(trace))
        key = key if OUTSIDE not in trace.metadata.properties else None
        if key and key == _key(file, (name, *asked), packages):  # else the file changed while it was read
            _keep(kind, key, kept)
    warn_of_ranks(file.path, kept.ranks_without_steps)
    return kept.answer


def calibrations() -> tuple[tuple[str, int], ...]:
    """What was measured on this machine, which predictions rest on: each file and its time."""
    from stepscope.models.calibration.calibration import kept_calibrations

    return tuple((path.name, path.stat().st_mtime_ns) for path in kept_calibrations())


def _key(file: InputFile, asked: tuple[Any, ...], packages: tuple[str, ...]) -> Key | None:
    from stepscope.facts.load import key_of_text

    if not file.cache:
        return None
    capture = file.graph_capture and (file.graph_capture, Path(file.graph_capture).stat().st_mtime_ns)
    what = (asked[0], file.path, file.range_name, capture, *asked[1:])  # answers name the path
    return key_of_text(Path(file.path), file.model, file.as_recorded, what, packages)


def _fetch(kind: Any, key: Key) -> Any:
    from stepscope.trace.cache import fetch_text

    text = fetch_text(key)
    with suppress(msgspec.MsgspecError, RecursionError):
        return None if text is None else decode(text, kind)
    return None


def _keep(kind: Any, key: Key, kept: _Kept[Answer]) -> None:
    """Keep an answer, but not one that JSON cannot hold: numbers not finite, names not UTF-8."""
    from stepscope.trace.cache import keep_text

    with suppress(msgspec.MsgspecError, TypeError, RecursionError, UnicodeEncodeError):
        text = msgspec.json.encode(kept)
        if decode(text, kind) == kept:
            keep_text(key, text)
