"""Overlays over the project's folders, in a mount namespace of this process."""

import ctypes
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from stepscope.base.scratch.project import is_in
from stepscope.base.scratch.write_protection import system_call

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # flags of unshare(2) and mount(2)
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
# What leads past an overlay: sys_module, sys_rawio, sys_ptrace (to `/proc/1/root`), sys_admin (umount,
# setns) and mknod.
_PAST_OVERLAYS = (16, 17, 19, 21, 27)  # numbers of capabilities in linux/capability.h
_CAPABILITY_VERSION = 0x20080522  # of capset(2): two words of 32 bits for each set
_PR_CAPBSET_DROP = 24  # of prctl(2)
_OCTAL = re.compile(r"\\(\d{3})")  # how mountinfo writes spaces


def enter_overlay(roots: Sequence[str], store: str, kept: Iterable[str] = ()) -> None:
    """From now on this process and all that it starts see overlays at `roots`.

    What is written there goes to `store`, an empty folder in none of them; folders `kept` within
    them stay as they are. Raises OSError if the system does not allow it, or has no overlayfs. This
    process must then end: it may have entered some of them.
    """
    if sys.platform != "linux":
        raise OSError("overlays need Linux")
    in_user_namespace = _own_mounts()
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    kept_fds = {folder: _opened(folder) for folder in kept if os.path.isdir(folder)}
    covered = [*roots, *_mounts_below(roots)]
    lower_fds = {folder: _opened(folder) for folder in covered}
    for number, folder in enumerate(covered):
        _cover(folder, lower_fds[folder], Path(store, str(number)), in_user_namespace)
    for folder, fd in kept_fds.items():
        if any(is_in(folder, root) for root in roots):
            _mount(f"/proc/self/fd/{fd}", folder, "", _MS_BIND)
    for fd in (*kept_fds.values(), *lower_fds.values()):
        os.close(fd)


def join_overlay(process: int) -> None:
    """From now on this process sees what another one, which called `enter_overlay`, sees.

    Raises OSError if that has ended, or this process has several threads.
    """
    for kind, flag in (("user", _CLONE_NEWUSER), ("mnt", _CLONE_NEWNS)):
        theirs, ours = (f"/proc/{number}/ns/{kind}" for number in (process, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            fd = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
            try:
                system_call("setns", "setns", fd, flag)
            finally:
                os.close(fd)


def stay_in_overlay() -> None:
    """From now on neither this process nor what it starts can leave the overlays, root included."""
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    system_call("capget", "capget", header, sets)
    words = list(struct.unpack("=6I", sets.raw))  # effective, permitted, inheritable; of 0-31, of 32-63
    for capability in _PAST_OVERLAYS:
        if words[1] & 1 << capability:
            system_call("prctl", "prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    given_up = sum(1 << capability for capability in _PAST_OVERLAYS)
    words[:3] = [word & ~given_up for word in words[:3]]
    system_call("capset", "capset", header, struct.pack("=6I", *words))


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


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    what = f"mount {kind or 'bind'} at {target}"
    system_call(what, "mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def _opened(folder: str) -> int:
    """A descriptor: it means the folder whatever is mounted over its path, and needs no quoting."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _own_mounts() -> bool:
    """Get a mount namespace; whether it took a user namespace to be allowed to."""
    try:
        system_call("unshare", "unshare", _CLONE_NEWNS)
        return False
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        system_call("unshare", "unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
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
        _mount("tmpfs", str(store), "tmpfs", 0)
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
        _mount("overlay", folder, "overlay", 0, options + ",userxattr" * in_user_namespace)
    finally:
        os.close(upper)
        os.close(work)


def _mounts_below(roots: Sequence[str]) -> list[str]:
    """Folders where other file systems are mounted, outer ones first: an overlay hides them."""
    mounts = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split()[4])
        inside = any(path != root and is_in(path, root) for root in roots)
        if inside and os.path.isdir(path):
            mounts.add(path)
    return sorted(mounts)
