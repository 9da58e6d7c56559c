"""Writes the file of a watched run: rows of steps, and facts as JSON.

Nothing of it may disturb training: what cannot be written is said at the end. The file is written
with `pwrite`, as a mapped page that the disk has no room for would end the process.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.base import watch_format as layout
from stepscope.errors import CaptureError
from stepscope.record.patch import ignoring, pass_on
from stepscope.record.unreplaced import os, time

Vector = tuple[Any, ...]  # fields as in `watch_format.FIELDS`
_ROW = struct.Struct(layout.ROW)
_TEXT = struct.Struct(layout.TEXT)
_DEVICE = struct.Struct(f"<{len(layout.DEVICE)}d")
_SAMPLE = struct.Struct(layout.SAMPLE)
_encode = json.JSONEncoder(ensure_ascii=False).encode  # not `dumps`, which a program may replace
_FIRST_DESCRIPTOR = 500  # below the usual limit of 1,024


class WatchFile:
    """The file of one process; `failure` says why it is no longer written."""

    def __init__(self, path: Path) -> None:
        self.path, self.failure = path, ""
        self._pending: list[tuple[int, bytes]] = []
        self._sums = [0.0] * len(layout.FIELDS)
        self._steps = self._texts = self._sampled = self._device_rows = self._first_ns = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # who reads the earlier file goes on reading that
            self._file = moved(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
            os.pwrite(self._file, layout.MAGIC, 0)  # first: where that fails, an empty file is left
            os.truncate(self._file, layout.FILE_BYTES)
        except OSError as error:
            raise CaptureError(f"cannot write {path}: {error.strerror}") from None
        self._identity = _identity(os.fstat(self._file))

    def add_step(self, step: Vector) -> None:
        """Keep a step."""
        offset = layout.STEPS_AT + self._steps % layout.KEPT_STEPS * layout.ROW_BYTES
        self._pending.append((offset, _ROW.pack(*step)))
        self._sums = [total + value for total, value in zip(self._sums, step, strict=True)]
        self._first_ns = self._first_ns if self._steps else step[1]
        self._steps += 1

    @property
    def sums(self) -> dict[str, float]:
        """Of all steps, by field, and their `count`."""
        return {**dict(zip(layout.FIELDS, self._sums, strict=True)), "count": self._steps}

    def put_text(self, facts: Mapping[str, Any]) -> None:
        """Replace what is no number; where it is too long, places are left out, then processes."""
        left = dict(facts)
        while len(data := _encode(left).encode("utf-8", "replace")) > layout.TEXT_BYTES - _TEXT.size:
            if places := left["places"]:
                left["places"] = places[: len(places) // 2]
            else:
                roles = list(left["processes"])
                left["processes"] = {role: left["processes"][role] for role in roles[: len(roles) // 2]}
        self._texts += 1
        self._put_slot(layout.TEXTS_AT, self._texts, data)

    def put_samples(
        self, lines: Sequence[Sequence[str | int]], samples: Sequence[tuple[int, int, int]]
    ) -> None:
        """Replace the samples: ns since the run began, position in the lines, and 1 if the thread slept.

        Of each line the function, file, number and role; where there is no room, the last lines are left
        out and the samples thinned out.
        """
        left = list(lines)
        while len(text := _encode(left).encode("utf-8", "replace")) > layout.MOST_LINES_BYTES:
            left = left[: len(left) // 2]
        every = -(-len(samples) // layout.MOST_SAMPLES) or 1
        kept = [_SAMPLE.pack(*sample) for sample in samples[::every] if sample[1] < len(left)]
        self._sampled += 1
        data = struct.pack("<I", len(text)) + text + b"".join(kept)
        self._put_slot(layout.SAMPLES_AT, self._sampled, data)

    def add_device(self, row: Sequence[float]) -> None:
        """Keep what a device reported, with fields as in `watch_format.DEVICE`."""
        offset = layout.DEVICE_AT + self._device_rows % layout.MOST_DEVICE_ROWS * _DEVICE.size
        self._pending.append((offset, _DEVICE.pack(*row)))
        self._device_rows += 1

    def _put_slot(self, slots: tuple[int, int], number: int, data: bytes) -> None:
        self._pending.append((slots[number % 2], _TEXT.pack(number, len(data), zlib.crc32(data)) + data))

    def flush(self) -> None:
        """Hand everything to the system; a row goes before the counter that includes it."""
        if self.failure:
            self._pending.clear()
            return
        _, _, wall_ns, *sums = self._sums
        means = (total / max(self._steps, 1) for total in sums)
        totals = _ROW.pack(self._steps, self._first_ns, int(wall_ns), *means)
        counters = struct.pack(layout.COUNTERS, self._steps, time.time_ns())
        last = [(layout.TOTALS_AT, totals), (layout.COUNTERS_AT, counters)]
        try:
            if _identity(os.fstat(self._file)) != self._identity:
                raise OSError(0, "the program closed its file")  # the number may be another file's now
            for offset, data in (*self._pending, *last):
                os.pwrite(self._file, data, offset)
            self._pending.clear()  # not before: a signal handler of the program may raise meanwhile
        except OSError as error:
            pass_on(error)
            self.failure = f"{self.path} ends at step {self._steps}: {error.strerror}"

    def close(self) -> None:
        """Flush, and see whether the file is still where it was made."""
        self.flush()
        try:
            if not self.failure and _identity(self.path.stat()) != self._identity:
                self.failure = f"{self.path} was replaced by another file during the run"
        except OSError as error:
            self.failure = f"{self.path} is gone: {error.strerror}"
        if not self.failure:
            os.close(self._file)


def moved(descriptor: int) -> int:
    """The same file under a high number: programs count on the next low one."""
    with ignoring(ImportError, OSError):  # Windows; a low limit of open files
        import fcntl

        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        os.close(descriptor)
        return high
    return descriptor


def _identity(status: Any) -> tuple[int, int]:
    return status.st_dev, status.st_ino
