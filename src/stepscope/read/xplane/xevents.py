"""The events of an XSpace's planes and their stats, as columns.

Source: xplane.proto, messages XEvent and XStat; xplane_schema.cc for the names of stats.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Integers, Mask, Rows
from stepscope.read.xplane.protobuf import BYTES, FIXED64, VARINT, Span, scan
from stepscope.read.xplane.xspace import Plane, XSpaceFile, inflated, read_stats, stat_name
from stepscope.trace.sets import Interner, distinct_rows

_BATCH = 1 << 18  # events per batch: enough for NumPy, with bounded memory
_KIND_OF = np.array([-1, -1, FIXED64, VARINT, VARINT, BYTES, BYTES, VARINT, BYTES])
_DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE, _PACKED = range(2, 9)
_NUMBERS = (_UNSIGNED, _SIGNED)


class Stats(NamedTuple):
    """Stats of a batch of events, shape (stats,) each, sorted by event."""

    owner: Integers  # index of the event in its batch
    name: Integers  # code of its name
    form: Integers  # the number of the XStat field that holds its value
    number: Integers  # its value as an integer, else the start of its bytes
    text: Integers  # code of its value as text, -1 if it is not text


class Batch:
    """Some events of one plane; columns of shape (events,), with their starts relative to their line's."""

    def __init__(self, reader: "PlaneReader", line: Integers, start: Integers, end: Integers) -> None:
        self._reader = reader
        found = scan(reader.source.octets, start, end, reader.source.damage)
        count = len(start)
        self.line = line  # index in the plane
        self.kind = found.last(1, count)  # metadata id
        self.offset_ps, self.duration_ps = found.last(2, count), found.last(3, count)
        self.timed = found.last(5, count, -1) < 0  # an aggregate of many events has no time
        inner = found.of(4, BYTES)
        self._stats = reader.stats(inner.owner, inner.value, inner.end)

    def __len__(self) -> int:
        return len(self.line)

    def integers(self, name: str) -> Integers:
        """An integer stat of each event, -1 if it has none."""
        result = self._shared(name, int, int)
        stats = self._stats
        rows = (stats.name == self._reader.names[name]) & np.isin(stats.form, _NUMBERS)
        result[stats.owner[rows]] = stats.number[rows]
        return result

    def has_text(self, name: str, *wanted: str) -> Mask:
        """Whether a text stat of each event is one of some words."""
        return np.isin(self.texts(name), [self._reader.words[word] for word in wanted])

    def texts(self, name: str) -> Integers:
        """The code in `EventReader.words` of a text stat of each event, -1 if it has none."""
        result = self._shared(name, str, self._reader.words.__getitem__)
        stats = self._stats
        rows = (stats.name == self._reader.names[name]) & (stats.text >= 0)
        result[stats.owner[rows]] = stats.text[rows]
        return result

    def per_kind(self, value: Callable[[int], int]) -> Integers:
        """`value(kind)` for each event, called once for each metadata id."""
        ids, inverse = self._kinds
        return np.array([value(kind) for kind in ids], np.int64)[inverse]

    @cached_property
    def _kinds(self) -> tuple[list[int], Integers]:
        keys, inverse = distinct_rows(self.kind)
        return [key for (key,) in keys], inverse

    def _shared(self, name: str, wanted: type, code: Callable[[Any], int]) -> Integers:
        def value(kind: int) -> int:
            found = self._reader.shared(kind).get(name)
            fits = not isinstance(found, int) or -(2**63) <= found < 2**63
            return code(found) if type(found) is wanted and fits else -1

        return self.per_kind(value)

    def arguments(self, rows: Rows, further: "Further") -> list[bytes]:
        """All stats of some events, and further arguments, as JSON objects, empty if there are none."""
        parts = self._reader.json_of(self._stats)
        bounds = np.searchsorted(self._stats.owner, np.arange(len(self) + 1)).tolist()
        shared = {kind: self._reader.shared_json(kind) for kind in self._kinds[0]}
        more, which = further.parts, further.which.tolist()
        kinds = self.kind.tolist()
        source, texts = self._reader.source, list[bytes]()
        for row in rows.tolist():
            found = (more[which[row]], shared[kinds[row]], parts[bounds[row] : bounds[row + 1]])
            text = b",".join(chain(*found)) if source.left_bytes > 0 else b""
            source.left_bytes -= len(text)
            texts.append(b"{%b}" % text if text else b"")
        source.log("long_arguments", "events repeat long arguments; read a part", int(source.left_bytes <= 0))
        return texts


class PlaneReader:
    """Reads the events of one plane, batch by batch; `words` are the texts of the file, by code."""

    def __init__(self, source: XSpaceFile, plane: Plane, words: Interner[str]) -> None:
        self.source, self.plane, self.words = source, plane, words
        self.names: Interner[str] = Interner()  # of stats
        self._shared_stats: dict[int, dict[str, Any]] = {}
        self._quoted = QuotedWords(words)

    def __iter__(self) -> Iterator[Batch]:
        lines = self.plane.lines
        line = np.repeat(np.arange(len(lines)), [len(line.starts) for line in lines])
        starts = np.concatenate([np.zeros(0, np.int64), *(line.starts for line in lines)])
        ends = np.concatenate([np.zeros(0, np.int64), *(line.ends for line in lines)])
        for first in range(0, len(line), _BATCH):
            rows = slice(first, first + _BATCH)
            yield Batch(self, line[rows], starts[rows], ends[rows])

    def shared(self, kind: int) -> dict[str, Any]:
        """The stats that all events of a metadata id share."""
        if kind not in self._shared_stats:
            spans = self.plane.kinds[kind].stats if kind in self.plane.kinds else []
            self._shared_stats[kind] = dict(read_stats(self.source, spans, self.plane.stat_names))
        return self._shared_stats[kind]

    def shared_json(self, kind: int) -> list[bytes]:
        """The same as parts of a JSON object."""
        return [b"%b:%b" % (quoted(name), as_json(value)) for name, value in self.shared(kind).items()]

    def stats(self, owner: Integers, start: Integers, end: Integers) -> Stats:
        """The stats at some places, each of the event `owner`, without those that have no value."""
        found = scan(self.source.octets, start, end, self.source.damage)
        key = found.last(1, len(start))
        within = np.clip(found.number, 0, len(_KIND_OF) - 1)
        holds = np.flatnonzero((found.number == within) & (_KIND_OF[within] == found.kind))
        place = np.full(len(start), -1, np.int64)
        place[found.owner[holds]] = holds  # the last of several counts
        valued = np.flatnonzero(place >= 0)
        place = place[valued]
        form, value, stop = found.number[place], found.value[place], found.end[place]
        ids, inverse = distinct_rows(key[valued])
        names = [self.names[stat_name(self.plane.stat_names, number)] for (number,) in ids]
        text = self._texts(form, value, stop)
        return Stats(owner[valued], np.array(names, np.int64)[inverse], form, value, text)

    def _texts(self, form: Integers, value: Integers, stop: Integers) -> Integers:
        result = np.full(len(form), -1, np.int64)
        refers = form == _REFERENCE
        ids, inverse = np.unique(value[refers], return_inverse=True)
        referred = [self.words[self.plane.stat_names.get(key, "")] for key in ids.tolist()]
        result[refers] = np.array(referred, np.int64)[inverse]
        written = np.flatnonzero((form == _TEXT) | (form == _PACKED))
        data, known = self.source.data, _Known(self)
        result[written] = [
            known[data[start:end]] if kind == _TEXT else self.words[inflated(data[start:end])]
            for kind, start, end in zip(
                form[written].tolist(), value[written].tolist(), stop[written].tolist(), strict=True
            )
        ]
        return result

    def json_of(self, stats: Stats) -> list[bytes]:
        """Each stat as a part of a JSON object."""
        value = np.where(stats.text >= 0, stats.text, stats.number)
        keys, inverse = distinct_rows(stats.name, np.where(stats.text >= 0, 0, stats.form), value)
        names = [quoted(name) for name in self.names]
        parts = np.array([b"%b:%b" % (names[key[0]], self._json(*key[1:])) for key in keys], object)
        return parts[inverse].tolist()

    def _json(self, form: int, value: int) -> bytes:
        if form == 0:
            return self._quoted[value]
        if form == _DOUBLE:
            return as_json(self.source.double(value))
        if form == _BYTES:
            return b'"bytes"'
        return b"%d" % (value % 2**64 if form == _UNSIGNED else value)


class _Known(dict[bytes, int]):
    """The code of a text by its bytes, so that each is decoded once."""

    def __init__(self, reader: PlaneReader) -> None:
        self._reader = reader

    def __missing__(self, raw: bytes) -> int:
        code = self[raw] = self._reader.words[self._reader.source.decoded(raw)]
        return code


class Further(NamedTuple):
    """Arguments of the events of a batch that are not among their stats."""

    parts: list[list[bytes]]  # the distinct sets of arguments, each as parts of a JSON object
    which: Integers  # the index in `parts` for each event


class QuotedWords(dict[int, bytes]):
    """A text as JSON by its code."""

    def __init__(self, words: Interner[str]) -> None:
        self._words = words
        self._texts: list[str] = []

    def __missing__(self, code: int) -> bytes:
        if code >= len(self._texts):
            self._texts = list(self._words)
        text = self[code] = quoted(self._texts[code])
        return text


def quoted(text: str) -> bytes:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False).encode()


def parts_of(values: Mapping[str, str | float]) -> list[bytes]:
    """Texts and whole numbers by name as parts of a JSON object, without empty and unknown ones."""
    return [
        b"%b:%b" % (quoted(name), quoted(value) if isinstance(value, str) else b"%d" % value)
        for name, value in values.items()
        if (value if isinstance(value, str) else math.isfinite(value))
    ]


def as_json(value: Any) -> bytes:
    """A value as JSON; for bytes of unknown meaning, the string "bytes"."""
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)  # JSON has no such number
    return b'"bytes"' if isinstance(value, Span) else json.dumps(value, ensure_ascii=False).encode()
