"""Denying a process every change of some folders, and seeing what else it changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stepscope.base.scratch.project import is_in
from stepscope.base.scratch.system_calls import (
    landlock_allow,
    landlock_restrict,
    landlock_ruleset,
    landlock_version,
)

# Rights of Landlock: write_file, remove_dir, remove_file, make_char … make_sym, refer, truncate.
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_FOLDER_RIGHTS = sum(1 << bit for bit in range(4, 13))
# Events of `sys.addaudithook`: which arguments are paths that change.
_CHANGING = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "os.removexattr": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def can_protect() -> bool:
    """Whether the kernel can deny a process and its children changes of a folder."""
    return sys.platform == "linux" and landlock_version() > 0


def protect(folders: Sequence[str], allowed: Iterable[str] = ()) -> None:
    """Deny this process and all that it starts every change of some folders.

    Args:
        folders: real paths; they can still be read. New entries directly in the folders above them
            are denied as well.
        allowed: folders that can be changed wherever they are.

    Raises:
        OSError: the kernel has no Landlock.
    """
    version = landlock_version()
    on_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    rights = on_files | _FOLDER_RIGHTS | (_REFER if version >= 2 else 0)
    ruleset = landlock_ruleset(rights)
    for path in (*_around(folders, os.sep), *allowed):
        landlock_allow(ruleset, path, rights if os.path.isdir(path) else on_files)
    landlock_restrict(ruleset)
    os.close(ruleset)


def _around(folders: Sequence[str], top: str) -> list[str]:
    """The largest files and folders that hold none of `folders`."""
    found = []
    try:
        entries = list(os.scandir(top))
    except OSError:
        return []
    for entry in entries:
        if entry.is_symlink() or entry.path in folders:
            continue
        if any(is_in(folder, entry.path) for folder in folders):
            found += _around(folders, entry.path)
        else:
            found.append(entry.path)
    return found


class WriteWatch:
    """Sees what Python code of this process changes: by path, and before it happens.

    Args:
        denied: folders whose change raises PermissionError.
        ignored: folders whose changes are of no interest.
        message: what the PermissionError says, after the path.
    """

    def __init__(self, denied: Sequence[str] = (), ignored: Sequence[str] = (), message: str = "") -> None:
        self.paths: dict[str, None] = {}
        self._denied, self._ignored, self._message = denied, ignored, message
        self._active = True

    def install(self) -> None:
        """Begin; there is no way to remove it."""
        sys.addaudithook(self._heard)

    def stop(self) -> None:
        """Look no more."""
        self._active = False

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and (event == "open" or event in _CHANGING):
            for path in _changed_paths(event, arguments):
                self._changes(path)

    def _changes(self, path: str) -> None:
        real = os.path.realpath(path)
        if any(is_in(real, folder) for folder in self._denied):
            raise PermissionError(13, f"Permission denied: {self._message}", path)
        if not any(is_in(real, folder) for folder in self._ignored) and "__pycache__" not in real:
            self.paths.setdefault(real)


def _changed_paths(event: str, arguments: tuple[Any, ...]) -> list[str]:
    if event == "open":
        path, _, flags = arguments
        return _as_path(path) if isinstance(flags, int) and flags & _WRITING else []
    places = _CHANGING[event]
    return [path for place in places if place < len(arguments) for path in _as_path(arguments[place])]


def _as_path(value: Any) -> list[str]:
    """The path, where it is one: events also have numbers of open files and `:memory:`."""
    to_text: Callable[[Any], Any] = os.fsdecode
    if not isinstance(value, str | bytes | os.PathLike):
        return []
    text = to_text(value)
    return [] if not text or text.startswith((":", "file:")) else [text]


def listed_writes(paths: Iterable[str]) -> str:
    """The first of the files outside of a project that its script changed, in words; empty for none."""
    distinct = list(dict.fromkeys(paths))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return f"{', '.join(distinct[:3])}{more}"
