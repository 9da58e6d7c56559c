"""The folders that belong to a script: its project, the working folder, and what links lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_MARKERS = (".git", ".hg", ".svn", "pyproject.toml", "setup.py", "setup.cfg", "environment.yml")
_MOST_ENTRIES = 50_000  # to look at for links
_SYSTEM = ("/dev", "/proc", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/boot")
SKIPPED = ("__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def project_of(script: str) -> str:
    """The nearest folder above a script that looks like a project, else the script's own folder.

    Args:
        script: path of the script.
    """
    folder = Path(script).resolve().parent
    home = Path.home().resolve()
    for candidate in (folder, *folder.parents):
        if candidate == home or len(candidate.parts) < 2:
            break
        if any((candidate / marker).exists() for marker in _MARKERS):
            return str(candidate)
    return str(folder)


def outermost(folders: Iterable[str]) -> tuple[str, ...]:
    """Folders that lie in none of the others."""
    unique = sorted(set(folders))
    return tuple(
        folder
        for folder in unique
        if not any(folder != one and is_in(folder, one) for one in unique)
    )


def is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it; both are real paths."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def linked_folders(roots: Iterable[str]) -> set[str]:
    """Folders outside the roots that symbolic links within them lead to."""
    roots = tuple(roots)
    found = set()
    for link in _links(roots):
        target = os.path.realpath(link)
        if not os.path.exists(target) or any(is_in(target, root) for root in roots):
            continue
        folder = target if os.path.isdir(target) else os.path.dirname(target)
        if not any(is_in(folder, one) for one in _SYSTEM) and folder != os.sep:
            found.add(folder)
    return found


def _links(roots: Iterable[str]) -> Iterator[str]:
    count = 0
    for root in roots:
        for entry in walk(root):
            count += 1
            if entry.is_symlink():
                yield entry.path
            if count >= _MOST_ENTRIES:
                return


def walk(root: str) -> Iterator[os.DirEntry[str]]:
    """Every entry below a folder; virtual environments and caches are not entered."""
    folders = [root]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False) and not is_skipped(entry):
                folders.append(entry.path)


def is_skipped(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is a virtual environment or a cache: no script's own work."""
    return entry.name in SKIPPED or os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
