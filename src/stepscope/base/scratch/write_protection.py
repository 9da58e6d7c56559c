"""Denying a process every change of some folders, and seeing what else it changes."""

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from stepscope.base.scratch.project import is_in

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on all architectures
_PR_SET_NO_NEW_PRIVS = 38  # of prctl(2)

# Rights of Landlock: write_file, remove_dir, remove_file, make_char … make_sym, refer, truncate.
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_FOLDER_RIGHTS = sum(1 << bit for bit in range(4, 13))
# Events of `sys.addaudithook`: which arguments are paths that change, and what each is relative to.
_CHANGING: dict[str, dict[int, int | None]] = {
    "os.remove": {0: 1},
    "os.rename": {0: 2, 1: 3},
    "os.rmdir": {0: 1},
    "os.mkdir": {0: 2},
    "os.truncate": {0: None},
    "os.symlink": {1: 2},
    "os.link": {1: 3},
    "os.chmod": {0: 2},
    "os.chown": {0: 3},
    "os.utime": {0: 3},
    "os.setxattr": {0: None},
    "os.removexattr": {0: None},
    "shutil.rmtree": {0: 1},
    "sqlite3.connect": {0: None},
    "socket.bind": {1: None},  # of a UNIX socket, unless its name begins with a zero
}
_NAMES, _NAME_BYTES = 256, 1024  # paths that forked children can report, and the longest of each
_IN_A_COPY = "Permission denied: the script runs in a copy of this project; --in-place lets it write here"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def system_call(what: str, function: str, *arguments: Any) -> int:
    """The result of a function of the C library; raises an OSError that says `what` failed."""
    result: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def can_protect() -> bool:
    """Whether the kernel can deny a process and its children changes of a folder."""
    try:
        return sys.platform == "linux" and _landlock_version() > 0
    except OSError:
        return False


def _landlock_version() -> int:
    return system_call("Landlock", "syscall", _LANDLOCK_CREATE, None, 0, 1)


def protect(folders: Sequence[str], allowed: Iterable[str] = ()) -> None:
    """Deny this process and all that it starts every change of some folders (real paths).

    They can still be read. New entries directly in the folders above them are denied as well; those in
    `allowed` can be changed wherever they are. Raises OSError if the kernel has no Landlock.
    """
    version = _landlock_version()
    on_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    rights = on_files | _FOLDER_RIGHTS | (_REFER if version >= 2 else 0)
    handled = struct.pack("=Q", rights)
    size = ctypes.c_size_t(len(handled))
    ruleset = system_call("landlock_create_ruleset", "syscall", _LANDLOCK_CREATE, handled, size, 0)
    for path in (*_around(folders, os.sep), *allowed):
        _allow(ruleset, path, rights if os.path.isdir(path) else on_files)
    system_call("prctl", "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    system_call("landlock_restrict_self", "syscall", _LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, accesses: int) -> None:
    """Allow accesses at a path and below it; paths that cannot be opened stay denied."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", accesses, fd)
        system_call(f"landlock rule for {path}", "syscall", _LANDLOCK_ADD, ruleset, 1, rule, 0)
    finally:
        os.close(fd)


def _around(folders: Sequence[str], top: str) -> list[str]:
    """The largest files and folders that hold none of `folders`."""
    outside = []
    try:
        entries = list(os.scandir(top))
    except OSError:
        return []
    for entry in entries:
        if entry.is_symlink() or entry.path in folders:
            continue
        if any(is_in(folder, entry.path) for folder in folders):
            outside += _around(folders, entry.path)
        else:
            outside.append(entry.path)
    return outside


class WriteWatch:
    """Sees what Python code of this process changes: by path, and before it happens.

    Changes of folders `denied` raise PermissionError, those of folders `ignored` are of no interest.
    There is no way to remove it.
    """

    def __init__(self, denied: Sequence[str] = (), ignored: Sequence[str] = ()) -> None:
        self._paths: dict[str, None] = {}
        self._shared = mmap.mmap(-1, _NAMES * _NAME_BYTES)  # with children that fork, and no descriptor
        self._denied, self._ignored = denied, ignored
        self._active = True
        sys.addaudithook(self._heard)

    def stop(self) -> list[str]:
        """Look no more; the files that were changed, here and in forked children."""
        self._active = False
        return list(dict.fromkeys([*self._paths, *self._reported()]))

    def _reported(self) -> Iterator[str]:
        for start in range(0, len(self._shared), _NAME_BYTES):
            name = self._shared[start : start + _NAME_BYTES].rstrip(b"\0")
            if not name:
                return
            yield os.fsdecode(name)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and (event == "open" or event in _CHANGING):
            for path in _changed_paths(event, arguments):
                self._changes(path)

    def _changes(self, path: str) -> None:
        real = os.path.realpath(path)
        if any(is_in(real, folder) for folder in self._denied):
            raise PermissionError(13, _IN_A_COPY, path)
        if not any(is_in(real, folder) for folder in self._ignored) and "__pycache__" not in real:
            if real not in self._paths:
                self._report(os.fsencode(real)[:_NAME_BYTES])
            self._paths.setdefault(real)

    def _report(self, name: bytes) -> None:
        for start in range(0, len(self._shared), _NAME_BYTES):
            if not self._shared[start]:
                self._shared[start : start + len(name)] = name
                return


def _changed_paths(event: str, arguments: tuple[Any, ...]) -> list[str]:
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & _WRITING and not isinstance(path, int)
        return _as_path(path) if writes else []
    given = dict[Any, Any](enumerate(arguments))
    places = ((place, base) for place, base in _CHANGING[event].items() if place in given)
    return [path for place, base in places for path in _as_path(given[place], given.get(base))]


def _as_path(value: Any, folder: Any = None) -> list[str]:
    """The path, where it is one: events also have numbers of open files, `:memory:`, addresses.

    `folder` is the descriptor of what a relative path is relative to, if not the working folder.
    """
    to_text: Callable[[Any], Any] = os.fsdecode
    if type(value) is int:
        return [path] if os.path.exists(path := f"/proc/self/fd/{value}") else []
    if not isinstance(value, str | bytes | os.PathLike):
        return []
    text = to_text(value)
    if text.startswith("file:"):  # of SQLite
        text, _, options = text.removeprefix("file:").partition("?")
        text = "" if "mode=ro" in options or "mode=memory" in options else text
    if isinstance(folder, int) and folder >= 0:
        text = os.path.join(f"/proc/self/fd/{folder}", text)
    return [] if not text or text.startswith((":", "\0")) else [text]


def listed_writes(paths: Iterable[str]) -> str:
    """The first of the files outside of a project that its script changed, in words; empty for none."""
    distinct = list(dict.fromkeys(paths))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return f"{', '.join(distinct[:3])}{more}"
