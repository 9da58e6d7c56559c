"""The few Linux calls that Python has no function for: namespaces, mounts, Landlock."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on all architectures
_PR_SET_NO_NEW_PRIVS = 38  # of prctl(2)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Give this process namespaces of its own; raises OSError."""
    _checked(_libc().unshare(flags), "unshare")


def set_namespace(fd: int, kind: int) -> None:
    """Enter another process's namespace; raises OSError."""
    _checked(_libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system; raises OSError."""
    words = [word.encode() for word in (source, target, kind)]
    _checked(
        _libc().mount(*words, ctypes.c_ulong(flags), options.encode() or None),
        f"mount {kind or 'bind'} at {target}",
    )


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0 for none."""
    return max(int(_libc().syscall(_LANDLOCK_CREATE, None, 0, 1)), 0)


def landlock_ruleset(handled: int) -> int:
    """A new ruleset that denies these accesses; its file descriptor."""
    attributes = struct.pack("=Q", handled)
    fd = _libc().syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    return _checked(int(fd), "landlock_create_ruleset")


def landlock_allow(ruleset: int, path: str, accesses: int) -> None:
    """Allow accesses at a path and below it; paths that cannot be opened stay denied."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", accesses, fd)
        _checked(_libc().syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock rule for {path}")
    finally:
        os.close(fd)


def landlock_restrict(ruleset: int) -> None:
    """Apply a ruleset to this process and all that it starts; there is no way back."""
    _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _checked(_libc().syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
