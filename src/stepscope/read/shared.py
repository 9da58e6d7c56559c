"""What readers of several formats share: warnings, JSON of other programs, and limits."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stepscope.base.arrays import Ids32, Mask, Times
from stepscope.errors import IngestError
from stepscope.trace.missing_records import RECORDS_MISSING, says_records_missing
from stepscope.trace.sets import Interner


class WarningLog:
    """Counts warnings by code; call it with (code, message)."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def __call__(self, code: str, message: str, count: int = 1) -> None:
        if count:
            first, before = self._found.get(code, (message, 0))
            self._found[code] = (first, before + count)

    def add(self, other: "WarningLog") -> None:
        """Take over the warnings of another log, after those of this one."""
        for code, message, count in other.rows():
            self(code, message, count)

    def rows(self) -> list[tuple[str, str, int]]:
        """(code, first message, count) in order of first appearance."""
        return [(code, message, count) for code, (message, count) in self._found.items()]


def log_note(log: WarningLog, note: str, otherwise: str = "") -> None:
    """Log a recorder's own note that it lost records of device work; any other only as `otherwise`."""
    code = RECORDS_MISSING if says_records_missing(note) else otherwise
    if code:
        log(code, f"the recorder reported: {' '.join(note.split())}")


def columns_of(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Columns by name of some rows, or of none."""
    return dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))


def codes_of(numbers: list[int], texts: list[str], what: str) -> Ids32:
    """Numbers of texts as a column; a ValueError says `what` they refer to that does not exist."""
    codes = np.array(numbers, np.int32)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(texts):
        raise ValueError(f"{what} that does not exist")
    return codes


_LONGEST_NAME, _SHORT_NAME = 1 << 14, 1 << 8  # letters; templates of CUDA have 6,000
_LETTERS_PER_NAME = 64  # more, as dozens of patterns begin to search each name: measured
_STEPS_PER_LETTER = 128  # of the worst pattern, that take as long as a letter does otherwise
_WHOLE_LETTERS, _MOST_LETTERS = 8 << 20, 10 << 20  # twenty times what the largest recordings have
_WORDS, _SIGNS = re.compile(r"\w+"), re.compile(r"\W")
_NUMBER = re.compile(r"\d+")


class EventNames(Interner[str]):
    """Codes of the names of events; a file of very many loses the numbers in further ones, then all."""

    _letters = _shortened = 0

    def __missing__(self, name: str) -> int:
        shown = self.shown(name)
        if (code := self.get(shown)) is None:
            self._letters += _LETTERS_PER_NAME + len(shown) + _worst_steps(shown) // _STEPS_PER_LETTER
            code = self[shown] = len(self)
        return code

    def shown(self, name: str) -> str:
        """What is kept of a name: patterns that are searched in more may take forever."""
        shown = name[:_LONGEST_NAME]
        if self._letters >= _WHOLE_LETTERS:
            shown = _NUMBER.sub("#", name[:_SHORT_NAME])
            shown = shown if self._letters < _MOST_LETTERS or shown in self else "(another name)"
        self._shortened += shown != name
        return shown

    def report(self, log: WarningLog) -> None:
        """Log how many names were shortened."""
        log("long_names", "the file has too many or too long names; shortened some", self._shortened)


def _worst_steps(name: str) -> int:
    """Steps of a pattern that begins at each letter of a word, or at each sign of one kind.

    Example:
        >>> _worst_steps("aaa"), _worst_steps("(a(b")
        (9, 10)
    """
    signs = Counter(_SIGNS.findall(name)).values()
    return sum(len(word) ** 2 for word in _WORDS.findall(name)) + max(signs, default=0) * len(name)


AGAIN = "copy the file again or repeat the recording"


@contextmanager
def checked(member: str) -> Iterator[None]:
    """Errors in a member of a capture as an IngestError that names it."""
    try:
        yield
    except (ValueError, IndexError, RecursionError, OverflowError) as error:
        raise IngestError(f"the capture's {member} is not valid: {error}; {AGAIN}") from error


MOST_RANKS = 1 << 24  # no job has more: a higher number is not a rank
MOST_NOTES = 20  # of a recorder, which are shown one by one; chosen: more than any writes
LONGEST_NS = 2**53  # 104 days: more is a recorder's mistake, and beyond a float's precision
MOST_LEVELS = 150  # of nested objects and arrays: Python's recursion limit is 1000 calls
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def near_others(times: Times, log: WarningLog) -> Mask:
    """Which times are at most `LONGEST_NS` from the median; the others are logged and to be skipped."""
    if not len(times) or int(times.max()) - int(times.min()) <= LONGEST_NS // 2:
        return np.ones(len(times), np.bool_)
    near: Mask = np.abs(times.astype(np.float64) - float(np.median(times))) <= LONGEST_NS
    log("far_timestamp", "skipped an event over 104 days away from the others", int((~near).sum()))
    return near


# Counts that facts are computed from, with more than any device has.
_MOST_OF = {"numSms": 1 << 16, "totalGlobalMem": 1 << 50, "memory_bytes": 1 << 50, "computeMajor": 1 << 10}
_MOST_OF |= {"id": MOST_RANKS, "index": MOST_RANKS, "computeMinor": 1 << 10}


def possible_devices(devices: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Devices without the counts that no device has, and with one line as their name.

    Example:
        >>> possible_devices([{"name": None, "numSms": 132}, {"numSms": "x", "id": -1}])
        ({'name': '', 'numSms': 132}, {})
    """
    return tuple(
        {
            key: " ".join(str(value or "").split()) if key == "name" else value
            for key, value in device.items()
            if key not in _MOST_OF or (type(value) is int and 0 <= value <= _MOST_OF[key])
        }
        for device in devices
    )


class NestingError(ValueError):
    """Some JSON nests too deeply."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {MOST_LEVELS} levels deep")


def parse_json(text: str) -> Any:
    """Parse JSON; half of a surrogate pair, which no file can hold, becomes `?`.

    Raw control characters in strings are accepted, as some recorders write them. Raises NestingError
    if it nests more than `MOST_LEVELS` deep, ValueError if it is not JSON.
    """
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        raise NestingError from None
    if not _is_shallow(text, value):
        raise NestingError
    if _SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _is_shallow(text: str, value: Any) -> bool:
    """Whether a value nests at most `MOST_LEVELS` deep, found without recursion."""
    if text.count("{") + text.count("[") <= MOST_LEVELS:
        return True
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return True
    return False
