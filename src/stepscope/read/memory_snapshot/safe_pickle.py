"""Plain data from a pickle, by the standard library's unpickler without all that makes objects.

Only opcodes that make numbers, text, bytes, lists, tuples and dicts are known, as PyTorch writes them.
Everything that could import, call or build an object is refused, so no code of a file can ever run.
"""

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, Protocol

from stepscope.errors import IngestError

Sink = Callable[[list[Any], list[Any]], bool]


class Items(Protocol):
    """Reads many items of a list at once, in place of the unpickler."""

    def starts_after(self, item: Any) -> bool:
        """Whether items like this one can be read at once."""

    def read(self, at: int, target: list[Any], memo: "Memo") -> int:
        """Read items from a place of the pickle on; where the first begins that was not read."""


class Memo(dict[int, Any]):
    """Values by number; `skipped` of them were read at once, and `known` gives them."""

    skipped = 0
    known: Callable[[int], Any] | None = None

    def __missing__(self, index: int) -> Any:
        if self.known is None:
            raise KeyError(index)
        return self.known(index)

    def __len__(self) -> int:
        return super().__len__() + self.skipped

    def __setitem__(self, index: int, value: Any) -> None:
        if self.skipped and index < len(self) and index not in self:
            self.skipped -= 1  # it takes the place of a value that was read at once
        super().__setitem__(index, value)


# What a snapshot from anyone may take; what compiled code reads at once counts for neither of the
# first two, and holds the millions of events of a large one.
_MOST_STEPS = 20_000_000  # opcodes; 8 s
_MOST_VALUES = 4_000_000  # lists, tuples and dicts, and what the memo holds; 140 bytes each
_MOST_AT_ONCE = 40_000_000  # events that are read at once; 4 bytes each
_LONGEST_STACK = 1 << 17  # values, or marks, that wait for their list; picklers write 1,000 at a time
_LONGEST_TEXT = 16 << 20  # bytes
_KEYS = (str, int, float, bytes, type(None))  # hashing a deep tuple would overflow the stack
_LARGEST_KEY = 1 << 31  # larger numbers can be made to have one hash
_EXACT = (  # the opcodes that the standard library's unpickler runs
    "PROTO", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "MARK", "POP", "POP_MARK",
    "DUP", "TUPLE1", "TUPLE2", "TUPLE3", "BINGET", "LONG_BINGET",
)  # fmt: skip
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_COUNTED = ("EMPTY_TUPLE", "TUPLE", "EMPTY_LIST", "BINPUT", "LONG_BINPUT", "MEMOIZE")


def load(data: Any, sink: Sink = lambda target, items: False, at_once: Items | None = None) -> Any:
    """The value that a pickle (bytes or a memory map) of plain data holds.

    It is None, bool, int, float, str, bytes, list, tuple, dict, and these nested. `sink` is called with
    a list and the items that are appended to it; where it returns true it has used the items up, and
    they are not kept. So a list of millions need not be held. Raises IngestError if the pickle holds
    anything but plain data, or is damaged.
    """
    try:
        return _PlainUnpickler(data, sink, at_once).load()
    except (EOFError, IndexError, struct.error):
        raise IngestError("the pickle is damaged or cut off; copy or download it again") from None
    except (pickle.UnpicklingError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise IngestError(f"the pickle is damaged ({type(error).__name__}: {error})") from None


# The standard library's own in Python: in C it has no place where items could be used up, and a
# snapshot of a GB would take 3.7 GB (docs/evidence/performance.md, "Memory snapshots").
_Unpickler: Any = pickle._Unpickler


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    def __init__(self, data: Any, sink: Sink, at_once: Items | None) -> None:
        super().__init__(io.BytesIO(), encoding="latin-1")
        self.data, self.sink, self.at_once = data, sink, at_once
        self.at = self.values = self.at_once_count = 0
        self.memo = Memo()
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        self.append = self.stack.append

    def load(self) -> Any:
        """Run all opcodes; the value on top of the stack at the end."""
        for step in range(_MOST_STEPS):
            if (code := self.read(1)[0]) == pickle.STOP[0]:
                return self.stack.pop()
            run = self.dispatch.get(code)
            if run is None:
                raise _refusal(code)
            run(self)
            if not step & 1023 and len(self.stack) + len(self.metastack) > _LONGEST_STACK:
                raise IngestError("the pickle is damaged (it begins lists and does not end them)")
        raise _too_large(f"takes more than {_MOST_STEPS:,} steps to read")

    def read(self, size: int) -> bytes:
        if _LONGEST_TEXT < size <= len(self.data) - self.at:
            raise IngestError(f"the pickle is damaged (a text of {size >> 20} MiB)")
        start, self.at = self.at, self.at + size
        found: bytes = self.data[start : self.at]
        if len(found) < size:
            raise EOFError
        return found

    def load_frame(self) -> None:
        """Skip the size of a frame, which says how the file is written."""
        self.read(8)

    def load_dict(self) -> None:
        """A new dict, after what can be read at once in its place."""
        if self.at_once and self.stack and self.at_once.starts_after(self.stack[-1]):
            self._read_at_once(self.at_once)
            if self.read(1) != pickle.EMPTY_DICT:
                self.at -= 1
                return
        self.count()
        self.append({})

    def _read_at_once(self, at_once: Items) -> None:
        """Use up the items of a list, and read what is like them."""
        self.at -= 1
        target = self.metastack[-1][-1] if self.metastack and self.metastack[-1] else None
        if isinstance(target, list) and self.sink(target, self.stack):
            self.stack.clear()
            before = self.memo.skipped
            self.at = at_once.read(self.at, target, self.memo)
            self.at_once_count += self.memo.skipped - before
            if self.at_once_count > _MOST_AT_ONCE:
                raise _too_large(f"holds more than {_MOST_AT_ONCE:,} entries")

    def load_items(self) -> None:
        items = self.pop_mark()
        if not self.sink(self.stack[-1], items):
            self.stack[-1].extend(items)

    def load_item(self) -> None:
        item = self.stack.pop()
        if not self.sink(self.stack[-1], [item]):
            self.stack[-1].append(item)

    def load_pairs(self) -> None:
        items = self.pop_mark()
        self._set(items[::2], items[1::2])

    def load_pair(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key], [value])

    def _set(self, keys: list[Any], values: list[Any]) -> None:
        for key in keys:
            if not isinstance(key, _KEYS):
                raise TypeError(f"a key is a {type(key).__name__}")
            if isinstance(key, int) and abs(key) > _LARGEST_KEY:
                raise TypeError("a key is a large number")
        self.stack[-1].update(zip(keys, values, strict=True))

    def count(self) -> None:
        """Count what takes more memory than bytes of the file."""
        self.values += 1
        if self.values > _MOST_VALUES:
            raise _too_large(f"holds more than {_MOST_VALUES:,} lists and dicts")


def _too_large(what: str) -> IngestError:
    return IngestError(
        f"the pickle {what}, more than a memory snapshot does; record a shorter history (max_entries=…)"
    )


def _counted(run: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(self: _PlainUnpickler) -> None:
        self.count()
        run(self)

    return counted


def _whole(run: Callable[[Any], None]) -> Callable[[Any], None]:
    def whole(self: _PlainUnpickler) -> None:
        """A text in which half of a surrogate pair, which no file can hold, is `?`."""
        run(self)
        if not (text := self.stack[-1]).isascii():
            self.stack[-1] = text.encode("utf-8", "replace").decode()

    return whole


def _code(name: str) -> int:
    opcode: bytes = getattr(pickle, name)
    return opcode[0]


_PlainUnpickler.dispatch = {
    **{_code(name): _Unpickler.dispatch[_code(name)] for name in _EXACT},
    **{_code(name): _whole(_Unpickler.dispatch[_code(name)]) for name in _TEXTS},
    **{_code(name): _counted(_Unpickler.dispatch[_code(name)]) for name in _COUNTED},
    _code("FRAME"): _PlainUnpickler.load_frame,
    _code("EMPTY_DICT"): _PlainUnpickler.load_dict,
    _code("APPENDS"): _PlainUnpickler.load_items,
    _code("APPEND"): _PlainUnpickler.load_item,
    _code("SETITEMS"): _PlainUnpickler.load_pairs,
    _code("SETITEM"): _PlainUnpickler.load_pair,
}


def _refusal(code: int) -> IngestError:
    import pickletools

    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    if code in names:
        return IngestError(
            f"the pickle holds more than plain data ({names[code]}); pickles that could run code are refused"
        )
    return IngestError(f"the pickle is damaged (unknown opcode 0x{code:02x})")
