"""The folders that belong to a script (its project, the working folder, what links lead to), and
temporary copies of them.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.errors import ScratchError

_MARKERS = (".git", ".hg", ".svn", "pyproject.toml", "setup.py", "setup.cfg", "environment.yml")
_MOST_ENTRIES = 50_000  # to look at for links
_SYSTEM = ("/dev", "/proc", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/boot")
SKIPPED = ("__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
LARGE = 64_000_000  # bytes of a file that is linked instead of copied where that is safe
_MOST_BYTES = 2_000_000_000  # copied for each run: some seconds
_MOST_FILES = 20_000  # copied for each run


def project_of(script: str) -> str:
    """The nearest folder above a script that looks like a project, else the script's own folder."""
    folder = Path(script).resolve().parent
    home = Path.home().resolve()
    for candidate in (folder, *folder.parents):
        if candidate == home or len(candidate.parts) < 2:
            break
        if any((candidate / marker).exists() for marker in _MARKERS):
            return str(candidate)
    return str(folder)


def repositories_of(roots: Iterable[str]) -> set[str]:
    """Folders that hold the Git repositories of the roots: a linked worktree's lies elsewhere."""
    folders = set()
    for root in roots:
        for candidate in (Path(root), *Path(root).parents):
            mark = candidate / ".git"
            if mark.is_file():
                folders |= _linked_repository(mark)
            elif mark.is_dir():
                folders.add(os.path.realpath(mark))
            if os.path.lexists(mark):
                break
    return folders


def _linked_repository(mark: Path) -> set[str]:
    """Where a `.git` file leads: the folder of a worktree or submodule, and the one that it shares."""
    with suppress(OSError, ValueError):
        folder = mark.parent / mark.read_text("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        shared = folder / "commondir"
        common = folder / shared.read_text("utf-8", "surrogateescape").strip() if shared.exists() else folder
        return {os.path.realpath(path) for path in (folder, common) if path.is_dir()}
    return set()


def outermost(folders: Iterable[str]) -> tuple[str, ...]:
    """Folders that lie in none of the others."""
    unique = sorted(set(folders))
    return tuple(
        folder for folder in unique if not any(folder != outer and is_in(folder, outer) for outer in unique)
    )


def is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it; both are real paths."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def linked_folders(roots: Iterable[str]) -> set[str]:
    """Folders outside the roots that symbolic links within them lead to."""
    roots = tuple(roots)
    folders = set()
    for link in _links(roots):
        target = os.path.realpath(link)
        if not os.path.exists(target) or any(is_in(target, root) for root in roots):
            continue
        folder = target if os.path.isdir(target) else os.path.dirname(target)
        if not any(is_in(folder, system) for system in _SYSTEM) and folder != os.sep:
            folders.add(folder)
    return folders


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


def measure_copy(roots: Sequence[str], link_large: bool) -> None:
    """Raise a ScratchError for what would take too long to copy for each run."""
    files = size = 0
    for root in roots:
        for entry in walk(root):
            if entry.is_file(follow_symlinks=False):
                length = entry.stat(follow_symlinks=False).st_size
                files += 1
                size += 0 if link_large and length > LARGE else length
            if files > _MOST_FILES or size > _MOST_BYTES:
                raise ScratchError(
                    f"{' and '.join(roots)} is too large for a temporary copy for each run (more than "
                    f"{_MOST_FILES:,} files or {_MOST_BYTES / 1e9:.0f} GB), and this system does not allow "
                    "overlays; run the script in place with --in-place, if it may write there"
                )


def copy_roots(
    roots: Sequence[str], store: str, link_large: bool, left_out: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Copy folders into an empty one, unless that was done before; pairs of a folder and its copy."""
    moved = [
        (root, os.path.join(store, str(number), os.path.basename(root))) for number, root in enumerate(roots)
    ]
    if os.path.exists(os.path.join(store, "0")):
        return moved
    for root, target in moved:
        copy_folder(root, target, link_large, left_out)
    for _, target in moved:
        relink(target, moved)
    return moved


def copy_folder(source: str, target: str, link_large: bool, left_out: Sequence[str] = ()) -> None:
    """Copy a folder, given as a real path, to one that does not exist yet.

    With `link_large`, where the source is write-protected, large files are linked; folders `left_out`
    are linked as they are.
    """
    os.makedirs(target)
    shutil.copymode(source, target)
    with os.scandir(source) as entries:
        for entry in entries:
            _copy_entry(entry, os.path.join(target, entry.name), link_large, left_out)


def _copy_entry(entry: os.DirEntry[str], target: str, link_large: bool, left_out: Sequence[str]) -> None:
    with suppress(PermissionError):  # what the user cannot read the script cannot either
        if entry.is_symlink():
            os.symlink(_link_target(entry.path), target)
        elif entry.is_dir():
            if entry.path in left_out or (is_skipped(entry) and link_large):
                os.symlink(entry.path, target)
            elif not is_skipped(entry):
                copy_folder(entry.path, target, link_large, left_out)
        elif entry.is_file():
            if link_large and entry.stat().st_size > LARGE:
                os.symlink(entry.path, target)
            else:
                shutil.copy2(entry.path, target)


def _link_target(link: str) -> str:
    """A link's target from anywhere: the copy lies elsewhere."""
    target = os.readlink(link)
    if os.path.isabs(target):
        return target
    resolved = os.path.normpath(os.path.join(os.path.dirname(link), target))
    return target if os.path.exists(resolved) or not os.path.lexists(link) else resolved


def relink(folder: str, moved: Sequence[tuple[str, str]]) -> None:
    """Let absolute links within a copy lead to the copy; `moved` are pairs of a folder and its copy."""
    for entry in walk(folder):
        if entry.is_symlink():
            target = os.readlink(entry.path)
            for old, new in moved:
                inside = target == old or target.startswith(old + os.sep)
                replacement = Path(new + target[len(old) :])
                if inside and replacement.exists() and str(replacement) != entry.path:
                    os.unlink(entry.path)
                    os.symlink(replacement, entry.path)
