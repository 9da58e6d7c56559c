"""Running a script without changing the project that it belongs to.

    plan_scratch    what is protected, and how; decided once, before the first run
    Scratch         that plan, as plain data; `enter` applies it in the process that runs the script

Where Linux allows it the process gets an *overlay*: the project's folders look as they are, at the
same paths, and whatever is written or deleted there goes to a temporary folder instead. Elsewhere
the script runs in a temporary *copy* of the project, and the project itself is write-protected.
"""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from stepscope.base.scratch.overlay import enter_overlay, join_overlay, stay_in_overlay
from stepscope.base.scratch.project import (
    copy_roots,
    is_in,
    linked_folders,
    measure_copy,
    outermost,
    project_of,
    repositories_of,
)
from stepscope.base.scratch.write_protection import WriteWatch, can_protect, listed_writes, protect
from stepscope.errors import ScratchError

__all__ = ["Scratch", "WriteWatch", "enter", "listed_writes", "original_path", "plan_scratch"]
__all__ += ["relocated", "relocated_word", "scratch_view"]
OVERLAY, COPY, IN_PLACE = "overlay", "copy", "in place"
_SOURCES = str(Path(__file__).parents[3])
_PYTHON = (sys.executable, "-I", "-B", "-c")
_IN_OVERLAY = (
    "import sys; sys.path.insert(0, {sources!r}); from stepscope.base.scratch.overlay import enter_overlay, "
    "stay_in_overlay, try_changes; enter_overlay({roots!r}, {store!r}, {kept!r}); {action}"
)
_TRY = "try_changes({roots!r}); stay_in_overlay()"
_HOLD = "print('ready', flush=True); sys.stdin.read()"
_PROBE_S = 20.0  # for a process to start on a busy machine


@dataclass(frozen=True)
class Scratch:
    """How a script is kept from changing its project."""

    method: str  # `overlay`, `copy`, or `in place` for no protection
    # The folders that belong to the script, as real paths: its project, the working folder, and for
    # overlays the folders that links lead to, and their Git repository.
    roots: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()  # outside the roots, the same; write-protected beside a copy
    kept: tuple[str, ...] = ()  # in the roots; stay as they are, such as the user's cache
    store: str = ""  # where the temporary data of each run goes; in none of the roots
    holder: int = 0  # a process that has the overlays already, to be joined; 0 for none

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "Scratch":
        """From `to_json`."""
        return cls(**facts)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """What it means for the user, for a message before the first run."""
        where = " and ".join(self.roots[:3])
        elsewhere = "elsewhere its changes are real, and those of C++ code and other programs are not listed"
        if self.method == OVERLAY:
            return f"in a scratch view of {where}: it changes nothing there; {elsewhere}"
        if self.method == COPY and not self.is_unguarded:
            return f"in a temporary copy of {where}: it changes nothing there; {elsewhere}"
        if self.method == COPY:
            return (
                f"in a temporary copy of {where}: this system cannot keep C++ code and other programs from "
                f"changing the original by its absolute path; {elsewhere}"
            )
        return "in place: whatever it writes or deletes is real, at each run"

    @property
    def is_unguarded(self) -> bool:
        """Whether only Python's own functions are kept from changing the project: worth a question."""
        return self.method == COPY and not can_protect()

    def new_store(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for the temporary data of one run; the caller removes it."""
        return tempfile.TemporaryDirectory(
            prefix="stepscope-scratch-", dir=self.store, ignore_cleanup_errors=True
        )


def plan_scratch(script: str, folder: str, *, in_place: bool = False, method: str | None = None) -> Scratch:
    """Decide how to run a script, or a file of a module's package, in a working folder.

    Its project is not changed, unless it runs `in_place`. The `method` is `overlay` or `copy`, by default
    the first that works here; `$STEPSCOPE_SCRATCH` chooses as well. Raises ScratchError if the project is
    too large to copy and overlays are not allowed.
    """
    if in_place:
        return Scratch(IN_PLACE)
    method = method or os.environ.get("STEPSCOPE_SCRATCH")
    folders = [project_of(script), os.path.realpath(folder)]
    roots = outermost(each for each in folders if "site-packages" not in each and each != os.sep)
    linked = tuple(sorted(linked_folders(roots) | _outside(repositories_of(roots), roots)))
    home_cache = str(Path.home().resolve() / ".cache")
    kept = (home_cache,) if any(is_in(home_cache, root) for root in roots) else ()
    everything = outermost([*roots, *linked])
    overlay = Scratch(OVERLAY, everything, (), kept, _store(everything))
    if method != COPY and overlay_works(overlay):
        return overlay
    if method == OVERLAY:
        raise ScratchError("this system does not allow overlays: unset STEPSCOPE_SCRATCH")
    copy = Scratch(COPY, roots, linked, kept, _store(roots))
    measure_copy(copy.roots, link_large=can_protect())
    return copy


@functools.lru_cache(maxsize=64)
def overlay_works(scratch: Scratch) -> bool:
    """Whether this system lets a process have the overlays; tried in a process of its own."""
    if sys.platform != "linux":
        return False
    with scratch.new_store() as store:
        command = _command(scratch, store, (), _TRY.format(roots=scratch.roots))
        try:
            run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return run.returncode == 0


def _outside(folders: Iterable[str], roots: Sequence[str]) -> set[str]:
    return {folder for folder in folders if not any(is_in(folder, root) for root in roots)}


def _command(scratch: Scratch, store: str, kept: Iterable[str], action: str) -> list[str]:
    """The command of a process that has the overlays, and then does something."""
    values = {"roots": scratch.roots, "store": store, "kept": list(kept), "action": action}
    return [*_PYTHON, _IN_OVERLAY.format(sources=_SOURCES, **values)]


def _store(roots: Sequence[str]) -> str:
    """A folder for temporary files outside the roots: an overlay cannot lie in itself."""
    candidates = [tempfile.gettempdir(), "/var/tmp", "/dev/shm", str(Path.home())]
    for candidate in map(os.path.realpath, candidates):
        outside = not any(is_in(candidate, root) for root in roots)
        if outside and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise ScratchError(
        f"no folder for temporary files outside {' and '.join(roots)}; run the script from its own "
        "folder, or use --in-place"
    )


@contextmanager
def scratch_view(scratch: Scratch, processes: int, kept: Sequence[str]) -> Iterator[tuple[Scratch, str]]:
    """Prepare the view of one run; raises ScratchError if it cannot be made.

    Yields what each of the processes passes to `enter`: the plan and the folder for its data. Folders
    `kept` stay as they are: results go there.
    """
    if scratch.method not in (OVERLAY, COPY):
        yield scratch, ""
        return
    with scratch.new_store() as store:
        if processes == 1:
            yield scratch, store
        elif scratch.method == COPY:
            copy_roots(scratch.roots, store, can_protect(), kept)
            yield scratch, store
        else:
            with _held(scratch, store, kept) as holder:
                yield replace(scratch, holder=holder), store


@contextmanager
def _held(scratch: Scratch, store: str, kept: Sequence[str]) -> Iterator[int]:
    """A process that has the overlays, for others to join, until this ends."""
    kept = [*scratch.kept, *(os.path.realpath(folder) for folder in kept)]
    command = _command(scratch, store, kept, _HOLD)
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise ScratchError("cannot make a scratch view for several processes; use --in-place")
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


_moved: list[tuple[str, str]] = []  # pairs of a folder and its copy, in this process


def enter(scratch: Scratch, store: str, kept: Sequence[str] = ()) -> WriteWatch:
    """From now on this process and all that it starts see the scratch view.

    Relative paths refer to the scratch view once the process changes to `relocated(folder)`.

    `store` is an empty folder from `scratch.new_store`; folders `kept` stay as they are, too: results
    go there. Returns what sees changes outside the project. Raises ScratchError if the view cannot be
    entered; the script must not run then.
    """
    kept = [*scratch.kept, *(os.path.realpath(folder) for folder in kept)]
    temporary = os.path.realpath(tempfile.gettempdir())
    ignored = [*scratch.roots, *scratch.kept, *kept, store, temporary, "/dev", "/proc", *_caches()]
    denied: list[str] = []
    try:
        if scratch.holder:
            join_overlay(scratch.holder)
        elif scratch.method == OVERLAY:
            enter_overlay(scratch.roots, store, kept)
        elif scratch.method == COPY:
            denied = [*scratch.roots, *scratch.linked]
            _enter_copy(scratch, store, kept, denied)
        if scratch.method == OVERLAY:
            stay_in_overlay()
    except OSError as error:
        raise ScratchError(
            f"cannot run the script in a scratch view: {error}; use --in-place to run it in the "
            "project itself"
        ) from error
    return WriteWatch(denied, [folder for folder in ignored if folder not in denied])


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


def _enter_copy(scratch: Scratch, store: str, kept: Sequence[str], protected: Sequence[str]) -> None:
    link_large = can_protect()
    _moved.extend(copy_roots(scratch.roots, store, link_large, kept))
    if link_large:
        # The usual one may hold the project, and then nothing new can be made directly in it.
        tempfile.tempdir = os.environ["TMPDIR"] = os.path.join(store, "tmp")
        os.makedirs(tempfile.tempdir, exist_ok=True)
        protect(protected, [*kept, store])
    sys.path[:] = [relocated(entry) for entry in sys.path]
    _keep_names_of_code()


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
