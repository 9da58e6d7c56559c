"""Overlays over the project's folders, in a mount namespace of this process."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from stepscope.base.scratch.project import is_in
from stepscope.base.scratch.system_calls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    mount,
    set_namespace,
    unshare,
)

_OCTAL = re.compile(r"\\(\d{3})")  # how mountinfo writes spaces


def enter_overlay(roots: Sequence[str], store: str, kept: Iterable[str] = ()) -> None:
    """From now on this process and all that it starts see overlays at `roots`.

    What is written there goes to `store`, an empty folder in none of them; folders `kept` within
    them stay as they are.

    Raises:
        OSError: the system does not allow it, or has no overlayfs. This process must then end: it
            may have entered some of them.
    """
    if sys.platform != "linux":
        raise OSError("overlays need Linux")
    in_user_namespace = _own_mounts()
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    kept_fds = {folder: _opened(folder) for folder in kept if os.path.isdir(folder)}
    covered = [*roots, *_mounts_below(roots)]
    lower_fds = {folder: _opened(folder) for folder in covered}
    for number, folder in enumerate(covered):
        _cover(folder, lower_fds[folder], Path(store, str(number)), in_user_namespace)
    for folder, fd in kept_fds.items():
        if any(is_in(folder, root) for root in roots):
            mount(f"/proc/self/fd/{fd}", folder, "", MS_BIND)
    for fd in (*kept_fds.values(), *lower_fds.values()):
        os.close(fd)


def join_overlay(process: int) -> None:
    """From now on this process sees what another one, which called `enter_overlay`, sees.

    Raises OSError if that has ended, or this process has several threads.
    """
    for kind, flag in (("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS)):
        theirs, ours = (f"/proc/{number}/ns/{kind}" for number in (process, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            fd = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
            try:
                set_namespace(fd, flag)
            finally:
                os.close(fd)


def try_changes(roots: Sequence[str]) -> None:
    """Change each folder, to see that it can be: in this process's overlay.

    Raises OSError if it cannot, as with files of another group than the user's own.
    """
    for root in roots:
        if os.access(root, os.W_OK):
            os.rmdir(tempfile.mkdtemp(dir=root))
            files = (entry for entry in os.scandir(root) if entry.is_file(follow_symlinks=False))
            file = next((entry.path for entry in files if os.access(entry.path, os.W_OK)), None)
            if file is not None:
                os.utime(file)


def _opened(folder: str) -> int:
    """A descriptor: it means the folder whatever is mounted over its path, and needs no quoting."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _own_mounts() -> bool:
    """Get a mount namespace; whether it took a user namespace to be allowed to."""
    try:
        unshare(CLONE_NEWNS)
        return False
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return True


def _cover(folder: str, lower: int, store: Path, in_user_namespace: bool) -> None:
    """Mount an overlay; in memory, where the store's file system cannot hold the upper layer."""
    store.mkdir()
    try:
        _mount_overlay(folder, lower, store, in_user_namespace)
    except OSError:
        mount("tmpfs", str(store), "tmpfs", 0)
        _mount_overlay(folder, lower, store, in_user_namespace)


def _mount_overlay(folder: str, lower: int, store: Path, in_user_namespace: bool) -> None:
    layers = [store / "upper", store / "work"]
    for layer in layers:
        layer.mkdir(exist_ok=True)
    upper, work = (_opened(str(layer)) for layer in layers)
    names = zip(("lowerdir", "upperdir", "workdir"), (lower, upper, work), strict=True)
    options = ",".join(f"{name}=/proc/self/fd/{fd}" for name, fd in names)
    try:
        # The upper layer's folder stands for the project's: who may enter must be the same.
        (store / "upper").chmod(os.stat(folder).st_mode & 0o7777)
        mount("overlay", folder, "overlay", 0, options + ",userxattr" * in_user_namespace)
    finally:
        os.close(upper)
        os.close(work)


def _mounts_below(roots: Sequence[str]) -> list[str]:
    """Folders where other file systems are mounted, outer ones first: an overlay hides them."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split()[4])
        inside = any(path != root and is_in(path, root) for root in roots)
        if inside and os.path.isdir(path) and path not in found:
            found.append(path)
    return sorted(found)
