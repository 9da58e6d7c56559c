"""Writes a memory snapshot of any size, opcode by opcode, as Python's pickler writes PyTorch's.

    python benchmarks/big_snapshot.py FILE [EVENTS]

Each event has a call stack of its own, a list of 32 of some hundred shared frames, which makes
about 200 bytes an event.
"""

from __future__ import annotations

import pickle
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

STACKS, FRAMES, DEPTH = 2000, 600, 32
LIVE, STEP = 400, 1200  # allocations of weights, and of a step, which ends with all released
SEGMENT = 1 << 31
_BATCH = 1000  # items that the pickler appends at once
_KEYS = ("action", "addr", "size", "stream", "time_us", "frames")
_ACTIONS = ("alloc", "free_requested", "free_completed")


class Pickle:
    """The opcodes of protocol 4, and how many values are memoized."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.file.write(b"\x80\x04")
        self.memoized = 0

    def put(self, opcodes: bytes, memoized: int = 0) -> None:
        """Write opcodes that memoize so many values."""
        self.file.write(opcodes)
        self.memoized += memoized

    def text(self, text: str) -> bytes:
        """Write a text; returns what refers to it from then on."""
        data = text.encode()
        self.put(b"\x8c" + bytes([len(data)]) + data + b"\x94", 1)
        return reference(self.memoized - 1)


def reference(index: int) -> bytes:
    """BINGET or LONG_BINGET."""
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def integer(value: int) -> bytes:
    """BININT1, BININT2, BININT or LONG1, whichever the pickler chooses."""
    return pickle.dumps(value, 2)[2:-1]


def history(events: int, chance: random.Random) -> Iterator[tuple[str, int, int]]:
    """Actions, addresses and sizes of a training loop: a step allocates, then releases it all."""
    address, weights = 1 << 40, [512 * chance.randint(1, 2000) for _ in range(LIVE)]
    for size in weights[: events // 4]:
        yield "alloc", address, size
        address += size
    made, first = min(LIVE, events // 4), address
    while made < events:
        address, living = first, []
        for _ in range(STEP):
            size = 512 * chance.randint(1, 2000)
            living.append((address, size))
            yield "alloc", address, size
            address += size
        for address, size in reversed(living):
            yield "free_requested", address, size
            yield "free_completed", address, size
        made += 3 * STEP


def write_snapshot(path: Path, events: int, seed: int = 0) -> None:
    """A snapshot with a history of at least so many events."""
    chance = random.Random(seed)
    out = Pickle(path)
    out.put(b"}\x94(", 1)
    out.text("device_traces")
    out.put(b"]\x94]\x94(", 2)
    words = {word: out.text(word) for word in (*_KEYS, *_ACTIONS)}
    frames = [_frame(out, number) for number in range(FRAMES)]
    out.put(b"1(")  # the words and frames were written to be referred to: drop them
    stacks = [b"".join(chance.choices(frames, k=DEPTH)) for _ in range(STACKS)]
    for number, (action, address, size) in enumerate(history(events, chance)):
        if number and number % _BATCH == 0:
            out.put(b"e(")
        values = {
            "action": words[action],
            "addr": integer(address),
            "size": integer(size),
            "stream": b"K\0",
            "time_us": integer(1_700_000_000_000_000 + number),
            "frames": b"]\x94(" + chance.choice(stacks) + b"e",
        }
        pairs = b"".join(words[key] + value for key, value in values.items())
        out.put(b"}\x94(" + pairs + b"u", 2)
    out.put(b"ea")
    out.text("segments")
    out.put(b"]\x94u.", 1)
    out.file.close()


def _frame(out: Pickle, number: int) -> bytes:
    library = number % 3 == 0
    file = f"/site-packages/torch/nn/m{number}.py" if library else f"/home/me/model{number}.py"
    out.put(b"}\x94(", 1)
    mine = out.memoized - 1
    out.text("name"), out.text("forward")
    out.text("filename"), out.text(file)
    out.text("line"), out.put(integer(number % 900))
    out.put(b"u")
    return reference(mine)


if __name__ == "__main__":
    write_snapshot(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000)
