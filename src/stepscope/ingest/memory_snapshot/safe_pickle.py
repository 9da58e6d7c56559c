"""Plain data from a pickle, by an interpreter of its own that can build nothing else.

Only opcodes that make numbers, text, bytes, lists, tuples, dicts and sets are known. Everything
that could import, call or build an object is refused, so no code of a file can ever run.

Source: the opcodes' meaning is that of Python's Lib/pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from stepscope.errors import IngestError

Sink = Callable[[list[Any], list[Any]], bool]


class Items(Protocol):
    """Reads many items of a list at once, in place of the interpreter."""

    def starts_after(self, item: Any) -> bool:
        """Whether items like this one can be read at once."""

    def read(self, at: int, target: list[Any], memo: Memo) -> int:
        """Read items that begin at a place of the pickle.

        Args:
            at: where the first of them begins, in the list's mark.
            target: the list.
            memo: of the interpreter; counts what the items add.

        Returns:
            Where the first item begins that was not read, or what comes instead.
        """


class Memo(dict[int, Any]):
    """Values by number; `skipped` of them were read at once, and `known` tells what they are."""

    skipped = 0
    known: Callable[[int], Any] | None = None

    def __missing__(self, index: int) -> Any:
        if self.known is None:
            raise KeyError(index)
        return self.known(index)


_MAX_CONTAINERS = 40_000_000
_MAX_DIGITS = 40
_FIXED = {  # opcode: how many bytes its argument has, and how they are read
    b"K": struct.Struct("<B"), b"M": struct.Struct("<H"), b"J": struct.Struct("<i"),
    b"G": struct.Struct(">d"),
}  # fmt: skip
_COUNTED = {  # opcode: how the length before its bytes is written
    b"\x8c": ("<B", "text"), b"X": ("<I", "text"), b"\x8d": ("<Q", "text"),
    b"U": ("<B", "latin"), b"T": ("<i", "latin"),
    b"C": ("<B", "bytes"), b"B": ("<I", "bytes"), b"\x8e": ("<Q", "bytes"),
    b"\x96": ("<Q", "bytes"), b"\x8a": ("<B", "integer"), b"\x8b": ("<i", "integer"),
}  # fmt: skip
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_EMPTY: dict[bytes, Callable[[], Any]] = {b"}": dict, b"]": list, b")": tuple, b"\x8f": set}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_REFUSED = {
    b"c": "GLOBAL", b"\x93": "STACK_GLOBAL", b"R": "REDUCE", b"b": "BUILD", b"i": "INST",
    b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX", b"P": "PERSID", b"Q": "BINPERSID",
    b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4", b"\x97": "NEXT_BUFFER",
    b"\x98": "READONLY_BUFFER",
}  # fmt: skip


def load(
    data: bytes | memoryview,
    sink: Sink = lambda target, items: False,
    at_once: Items | None = None,
) -> Any:
    """The value that a pickle of plain data holds.

    Args:
        data: the pickle.
        sink: called with a list and the items that are appended to it; where it returns true it
            has used the items up, and they are not kept. So a list of millions need not be held.
        at_once: reads many items of a list at once.

    Returns:
        The value: None, bool, int, float, str, bytes, list, tuple, dict, set, and these nested.

    Raises:
        IngestError: if the pickle holds anything but plain data, or is damaged.

    Example:
        >>> import pickle
        >>> load(pickle.dumps({"size": [1, 2.5, "a"]}))
        {'size': [1, 2.5, 'a']}
    """
    try:
        return _Interpreter(data, sink, at_once).run()
    except (IndexError, struct.error):
        raise IngestError("the pickle is damaged or cut off; copy or download it again") from None
    except (KeyError, TypeError, ValueError, AttributeError, UnicodeError) as error:
        raise IngestError(f"the pickle is damaged ({type(error).__name__}: {error})") from None


class _Interpreter:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self, data: bytes | memoryview, sink: Sink, at_once: Items | None) -> None:
        self.data, self.sink, self.at_once = data, sink, at_once
        self.at = 0
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo = Memo()
        self.containers = 0
        self.others = _named(self)

    def run(self) -> Any:
        """Run all opcodes; the value on top of the stack at the end.

        The loop handles what makes up nine tenths of a snapshot itself: a call for each opcode
        would double the time.
        """
        data, memo, others, sink = self.data, self.memo, self.others, self.sink
        at_once = self.at_once
        at, stack, marked, unpack = 0, self.stack, self.marked, struct.unpack_from
        while True:
            code = data[at]
            at += 1
            if code == 0x6A:  # LONG_BINGET
                stack.append(memo[unpack("<I", data, at)[0]])
                at += 4
            elif code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x94:  # MEMOIZE
                memo[len(memo) + memo.skipped] = stack[-1]
            elif code == 0x8A:  # LONG1
                size = data[at]
                at += 1 + size
                stack.append(int.from_bytes(data[at - size : at], "little", signed=True))
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x28:  # MARK
                marked.append(stack)
                stack = []
            elif code == 0x75:  # SETITEMS
                items, stack = stack, marked.pop()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif code == 0x7D:  # EMPTY_DICT
                if at_once and stack and at_once.starts_after(stack[-1]):
                    at = self._read_at_once(at - 1, marked, stack)
                    if data[at] != 0x7D:
                        continue
                    at += 1
                self._count()
                stack.append({})
            elif code == 0x65:  # APPENDS
                items, stack = stack, marked.pop()
                if not sink(stack[-1], items):
                    stack[-1].extend(items)
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                self.at, self.stack = at, stack
                if code not in others:
                    raise _refusal(code)
                others[code](bytes((code,)))
                at, stack = self.at, self.stack

    def _read_at_once(self, at: int, marked: list[list[Any]], items: list[Any]) -> int:
        """Use up the items of a list, and read what is like them; where the rest begins."""
        target = marked[-1][-1] if marked and marked[-1] else None
        if not self.at_once or not isinstance(target, list) or not self.sink(target, items):
            return at
        items.clear()
        before = self.memo.skipped
        at = self.at_once.read(at, target, self.memo)
        self.containers += self.memo.skipped - before
        self._check_containers()
        return at

    # -- what the opcodes do

    def _fixed(self, code: bytes) -> None:
        layout = _FIXED[code]
        self.stack.append(layout.unpack_from(self.data, self.at)[0])
        self.at += layout.size

    def _counted(self, code: bytes) -> None:
        layout, kind = _COUNTED[code]
        size = struct.unpack_from(layout, self.data, self.at)[0]
        start = self.at + struct.calcsize(layout)
        if not 0 <= size <= len(self.data) - start:
            raise IndexError
        raw = bytes(self.data[start : start + size])
        self.at = start + size
        self.stack.append(_decoded(raw, kind))

    def _empty(self, code: bytes) -> None:
        self._count()
        self.stack.append(_EMPTY[code]())

    def _count(self) -> None:
        self.containers += 1
        self._check_containers()

    def _check_containers(self) -> None:
        if self.containers > _MAX_CONTAINERS:
            raise IngestError(
                f"the pickle holds more than {_MAX_CONTAINERS:,} lists and dicts, more than a "
                "memory snapshot has; record a shorter history (max_entries=…)"
            )

    def _constant(self, code: bytes) -> None:
        self.stack.append(_CONSTANTS[code])

    def _small_tuple(self, code: bytes) -> None:
        count = _TUPLES[code]
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def _of_mark(self, code: bytes) -> None:
        """TUPLE, LIST, DICT and FROZENSET: all since the mark."""
        self._count()
        items, self.stack = self.stack, self.marked.pop()
        made: Any = {b"t": tuple, b"l": list, b"\x91": frozenset}.get(code)
        if made is None:
            self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        else:
            self.stack.append(made(items))

    def _append(self, code: bytes) -> None:
        item = self.stack.pop()
        if not self.sink(self.stack[-1], [item]):
            self.stack[-1].append(item)

    def _set_item(self, code: bytes) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update({key: value})

    def _add_items(self, code: bytes) -> None:
        items, self.stack = self.stack, self.marked.pop()
        self.stack[-1].update(items)

    def _pop(self, code: bytes) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.stack = self.marked.pop()

    def _pop_mark(self, code: bytes) -> None:
        self.stack = self.marked.pop()

    def _duplicate(self, code: bytes) -> None:
        self.stack.append(self.stack[-1])

    def _skip(self, code: bytes) -> None:
        """PROTO and FRAME, which say how the file is written."""
        self.at += 1 if code == b"\x80" else 8

    def _put(self, code: bytes) -> None:
        index = self._index(code, b"q", b"r")
        memo = self.memo
        if memo.skipped and index not in memo and index < len(memo) + memo.skipped:
            memo.skipped -= 1  # it takes the place of a value that was read at once
        self.memo[index] = self.stack[-1]

    def _get(self, code: bytes) -> None:
        self.stack.append(self.memo[self._index(code, b"h", b"j")])

    def _index(self, code: bytes, short: bytes, long: bytes) -> int:
        if code == short:
            self.at += 1
            return self.data[self.at - 1]
        if code == long:
            self.at += 4
            return int(struct.unpack_from("<I", self.data, self.at - 4)[0])
        return _integer(self._line())

    def _text_number(self, code: bytes) -> None:
        line = self._line()
        if code == b"F":
            self.stack.append(float(line))
        elif code == b"I" and line in (b"00", b"01"):
            self.stack.append(line == b"01")
        else:
            self.stack.append(_integer(line.removesuffix(b"L")))

    def _text_line(self, code: bytes) -> None:
        line = self._line()
        if code == b"V":
            self.stack.append(line.decode("raw-unicode-escape"))
        else:
            self.stack.append(line.strip(b"'\"").decode("unicode-escape"))

    def _line(self) -> bytes:
        rest = bytes(self.data[self.at : self.at + (1 << 16)])
        end = rest.index(b"\n")
        self.at += end + 1
        return rest[:end]


def _named(one: _Interpreter) -> dict[int, Callable[[bytes], None]]:
    """The functions of the opcodes that the loop does not handle itself, by opcode."""
    groups: list[tuple[Callable[[bytes], None], tuple[bytes, ...]]] = [
        (one._fixed, (*_FIXED,)), (one._counted, (*_COUNTED,)), (one._empty, (*_EMPTY,)),
        (one._constant, (*_CONSTANTS,)), (one._small_tuple, (*_TUPLES,)),
        (one._of_mark, (b"t", b"l", b"d", b"\x91")), (one._append, (b"a",)),
        (one._set_item, (b"s",)), (one._add_items, (b"\x90",)), (one._pop, (b"0",)),
        (one._pop_mark, (b"1",)), (one._duplicate, (b"2",)), (one._skip, (b"\x80", b"\x95")),
        (one._put, (b"q", b"r", b"p")), (one._get, (b"h", b"j", b"g")),
        (one._text_number, (b"I", b"L", b"F")), (one._text_line, (b"V", b"S")),
    ]  # fmt: skip
    return {code[0]: function for function, codes in groups for code in codes}


def _decoded(raw: bytes, kind: str) -> Any:
    if kind == "text":
        return raw.decode("utf-8", "surrogatepass")
    if kind == "integer":
        return int.from_bytes(raw, "little", signed=True)
    return raw.decode("latin-1") if kind == "latin" else raw


def _integer(line: bytes) -> int:
    if len(line) > _MAX_DIGITS:
        raise ValueError("a number of too many digits")
    return int(line)


def _refusal(code: int) -> IngestError:
    name = _REFUSED.get(bytes((code,)))
    if name:
        return IngestError(
            f"the pickle holds an object ({name}), not only plain data; pickles that could run "
            "code are refused"
        )
    return IngestError(f"the pickle is damaged (unknown opcode 0x{code:02x})")
