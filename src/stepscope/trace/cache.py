"""The cache of files that were opened before: their tables, and texts that were derived of them.

An entry is a folder whose name contains hashes of the file, its state and the code that read it, so
an outdated entry is never found. An entry with wrong checksums is deleted. Failures of the cache
are not errors: the file is read again. Texts need no NumPy: looking one up takes milliseconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.base.input_files import open_input
from stepscope.errors import TraceError
from stepscope.trace import cache_folder as entry_folder
from stepscope.trace.cache_folder import cache_folder
from stepscope.version import __version__

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

LIMIT_VARIABLE = "STEPSCOPE_CACHE_BYTES"
_DEFAULT_LIMIT_BYTES = 10 << 30  # of disk
_SAMPLE_BYTES, _SAMPLES = 1 << 14, 8  # of a file's content: 128 KiB, whatever its size
_ABANDONED_S = 3600  # an hour: writing an entry takes less
# Looking at all entries each time one is kept would make the cost of many files quadratic: a process
# looks again once it has kept this share of their number, or of the room that was left.
_SHARE_BETWEEN_LOOKS = 8  # an eighth; chosen: the limit may be exceeded by that share of the room left
_left: dict[Path, tuple[int, int]] = {}  # entries and bytes to keep before the next look, by folder
_TEXT = "text"
_CHECKSUM_BYTES = 4  # of a CRC-32
# The folder may hold other things too: only names of this form are entries.
_ENTRY_NAME = re.compile(r"(?P<unfinished>\.+)?[0-9a-f]{24}-[0-9a-f]{24}(?(unfinished)\..+)")


@dataclass(frozen=True)
class Key:
    """The key of an entry: `file` hashes path and options, `state` content and code."""

    file: str
    state: str

    @property
    def name(self) -> str:
        """The name of the entry's folder."""
        return f"{self.file}-{self.state}"


def key_of(path: Path, options: bytes = b"", code: bytes = b"") -> Key:
    """The key of a file in its current state; raises OSError if it cannot be read.

    `options` are anything else that affects the result, `code` identifies what computes it.
    """
    real = path.resolve()
    state = (__version__.encode(), code, *_state(real))
    return Key(_digest(os.fsencode(real), options), _digest(*state))


def fetch(key: Key) -> Trace | None:
    """The stored trace of `key`, or None; a damaged entry is deleted."""
    if (entry := _entry(key)) is None:
        return None
    from stepscope.trace import store

    try:
        trace = store.load(entry)
    except TraceError:
        _remove(entry)
        return None
    _mark_used(entry)
    return trace


def keep(key: Key, trace: Trace) -> None:
    """Store a trace, replacing older entries of the same file sooner or later, within the cache's size
    limit up to an eighth of the room that is left."""
    from stepscope.trace import store

    _keep(key, lambda entry: store.save(trace, entry))


def fetch_text(key: Key) -> bytes | None:
    """The text that `keep_text` stored for `key`, or None; a damaged entry is deleted."""
    if (entry := _entry(key)) is None:
        return None
    try:
        content = (entry / _TEXT).read_bytes()
    except OSError:
        return None
    checksum, text = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if checksum != _checksum(text):
        _remove(entry)
        return None
    _mark_used(entry)
    return text


def keep_text(key: Key, text: bytes) -> None:
    """Store a text, replacing older entries of the same file and options."""

    def write(entry: Path) -> None:
        with entry_folder.written(entry) as work:
            (work / _TEXT).write_bytes(_checksum(text) + text)

    _keep(key, write)


def entries() -> list[Path]:
    """The folder of each entry, unfinished ones included."""
    return [entry for _, _, entry in _entries(cache_folder())]


def limit_bytes() -> int:
    """The size limit of the cache: $STEPSCOPE_CACHE_BYTES, else 10 GiB."""
    with suppress(KeyError, ValueError):
        return int(os.environ[LIMIT_VARIABLE])
    return _DEFAULT_LIMIT_BYTES


def _entry(key: Key) -> Path | None:
    folder = cache_folder()
    entry = folder / key.name if folder else None
    return entry if entry and entry.is_dir() else None


def _keep(key: Key, write: Callable[[Path], None]) -> None:
    folder = cache_folder()
    if folder is None:
        return
    with suppress(OSError, RecursionError):
        folder.mkdir(parents=True, exist_ok=True)
        entry = folder / key.name
        write(entry)
        if _is_look_due(folder, entry):
            _shrink(folder, limit_bytes())


def _remove(entry: Path) -> None:
    with suppress(OSError):
        entry_folder.remove(entry)


def _mark_used(entry: Path) -> None:
    """The least recently used entries are deleted first."""
    with suppress(OSError):
        os.utime(entry)


def _checksum(text: bytes) -> bytes:
    return zlib.crc32(text).to_bytes(_CHECKSUM_BYTES, "little")


def _state(path: Path) -> tuple[bytes | int, ...]:
    """Size, times, inode and samples: timestamps alone are too coarse and can be reset."""
    with open_input(path) as file:
        facts = os.fstat(file.fileno())
        step = max(facts.st_size // _SAMPLES, _SAMPLE_BYTES)
        samples = []
        for position in (*range(0, facts.st_size, step), max(facts.st_size - _SAMPLE_BYTES, 0)):
            file.seek(position)
            samples.append(file.read(_SAMPLE_BYTES))
    times = facts.st_mtime_ns, facts.st_ctime_ns
    return facts.st_size, *times, facts.st_ino, b"".join(samples)


def _digest(*parts: bytes | int) -> str:
    sized = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return hashlib.blake2b(b"".join(b"%d:%b" % (len(p), p) for p in sized), digest_size=12).hexdigest()


def _is_look_due(folder: Path, entry: Path) -> bool:
    count, room = _left.get(folder, (0, 0))
    _left[folder] = count, room = count - 1, room - entry_folder.size(entry)
    return count < 0 or room < 0


def _shrink(folder: Path, limit: int) -> None:
    """Delete outdated entries and abandoned work folders; if the rest does not fit, also the least
    recently used until there is some room."""
    entries = sorted(_entries(folder))
    newest = {entry.name.partition("-")[0]: entry for _, _, entry in entries}
    total = sum(size for _, size, _ in entries)
    most = limit - limit // _SHARE_BETWEEN_LOOKS if total > limit else limit
    count = len(entries)
    for used, size, entry in entries:
        unfinished = entry.name.startswith(".")
        outdated = not unfinished and newest[entry.name.partition("-")[0]] != entry
        abandoned = unfinished and time.time() - used > _ABANDONED_S
        if total > most or outdated or abandoned:
            entry_folder.remove(entry)
            total, count = total - size, count - 1
    _left[folder] = count // _SHARE_BETWEEN_LOOKS, (limit - total) // _SHARE_BETWEEN_LOOKS


def _entries(folder: Path | None) -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, folder) of each entry, unfinished ones included."""
    entries = []
    for entry in folder.iterdir() if folder and folder.is_dir() else ():
        with suppress(OSError):  # another process may delete it meanwhile
            if entry.is_dir() and _ENTRY_NAME.fullmatch(entry.name):
                entries.append((entry.stat().st_mtime, entry_folder.size(entry), entry))
    return entries
