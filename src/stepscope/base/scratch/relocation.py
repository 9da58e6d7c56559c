"""Entering the scratch view in the process that runs the script."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any

from stepscope.base.scratch.overlay import enter_overlay, join_overlay
from stepscope.base.scratch.plan import COPY, OVERLAY, Scratch
from stepscope.base.scratch.project import copy_roots, is_in
from stepscope.base.scratch.write_protection import WriteWatch, can_protect, protect
from stepscope.errors import ScratchError

_moved: list[tuple[str, str]] = []  # pairs of a folder and its copy, in this process


def enter(scratch: Scratch, store: str, kept: Sequence[str] = ()) -> WriteWatch:
    """From now on this process and all that it starts see the scratch view.

    Relative paths refer to the scratch view once the process changes to `relocated(folder)`.

    Args:
        scratch: from `plan_scratch`.
        store: an empty folder from `scratch.new_store`.
        kept: more folders that stay as they are: where results go.

    Returns:
        What sees changes outside the project.

    Raises:
        ScratchError: the view cannot be entered; the script must not run then.
    """
    kept = [*scratch.kept, *(os.path.realpath(folder) for folder in kept)]
    temporary = os.path.realpath(tempfile.gettempdir())
    ignored = [*scratch.roots, *scratch.kept, *kept, store, temporary, "/dev", "/proc", *_caches()]
    try:
        if scratch.holder:
            join_overlay(scratch.holder)
        elif scratch.method == OVERLAY:
            enter_overlay(scratch.roots, store, kept)
        elif scratch.method == COPY:
            return _enter_copy(scratch, store, kept, ignored)
    except OSError as error:
        raise ScratchError(
            f"cannot run the script in a scratch view: {error}; use --in-place to run it in the "
            "project itself"
        ) from error
    watch = WriteWatch(ignored=ignored)
    watch.install()
    return watch


def relocated(path: str) -> str:
    """Where a path of the project is in the scratch view; other paths are returned as they are."""
    real = os.path.realpath(path)
    moved = _translated(real, _moved)
    return path if moved == real else moved


def relocated_word(word: str) -> str:
    """A word of a command line, with the path in it where it is in the scratch view."""
    name, equals, value = word.partition("=")
    if equals and os.path.isabs(value):
        return f"{name}={relocated(value)}"
    return relocated(word) if os.path.isabs(word) else word


def original_path(path: str) -> str:
    """Where a path of the scratch view is in the project."""
    return _translated(path, [(new, old) for old, new in _moved])


def _translated(path: str, moved: Sequence[tuple[str, str]]) -> str:
    for old, new in moved:
        if is_in(path, old):
            return new + path[len(old) :]
    return path


def _enter_copy(scratch: Scratch, store: str, kept: Sequence[str], ignored: Sequence[str]) -> WriteWatch:
    protected = [*scratch.roots, *scratch.linked]
    link_large = can_protect()
    _moved.extend(copy_roots(scratch.roots, store, link_large, kept))
    if link_large:
        _use_temporary_folder(os.path.join(store, "tmp"))
        protect(protected, [*kept, store])
    sys.path[:] = [relocated(entry) for entry in sys.path]
    _keep_names_of_code()
    message = "the script runs in a copy of this project; --in-place lets it write here"
    watch = WriteWatch([*protected], [folder for folder in ignored if folder not in protected], message)
    watch.install()
    return watch


def _use_temporary_folder(folder: str) -> None:
    """The usual one may hold the project, and then nothing new can be made directly in it."""
    os.makedirs(folder, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = folder


def _keep_names_of_code() -> None:
    """Code of the copy goes by the names of the project's files: in errors, in what is measured."""
    sys.dont_write_bytecode = True
    original: Callable[..., Any] = SourceFileLoader.source_to_code

    def source_to_code(self: Any, data: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        return original(self, data, original_path(path), *args, **kwargs)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]


def _caches() -> list[str]:
    """Folders that libraries keep their caches in: no work of the user's."""
    home = os.path.realpath(os.path.expanduser("~"))
    names = [".cache", ".triton", ".nv", ".keras", ".config/matplotlib"]
    return [os.path.join(home, name) for name in names]
