"""The source files of the traced project: those that the trace itself names, and no other."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import ServeError
from stepscope.timeline.places import frame_place
from stepscope.trace.trace import Trace

_LARGEST_BYTES = 2_000_000
_OURS = Path(__file__).parents[1]
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class SourceText:
    """A source file: its text, or the reason why there is none.

    Attributes:
        text: None where it cannot be read.
        reason: empty where it can.
        changed: whether it was written after the recording.
    """

    text: str | None
    reason: str = ""
    changed: bool = False


class SourceFiles:
    """What files a trace names as those of modules, of their calls and of Python frames.

    A trace may come from anybody. So only Python files are read, and a name that is not absolute is
    looked for in the folder that the recorded program ran in, and never outside it.

    Args:
        trace: an annotated trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.names = _named(trace)
        capture = trace.metadata.capture
        cwd = capture.get("cwd")
        self._folder = Path(cwd) if isinstance(cwd, str) and Path(cwd).is_absolute() else None
        created = capture.get("created_unix_ns")
        self._recorded_ns = created if isinstance(created, int) else 0

    def read(self, name: str) -> SourceText:
        """The text of a file.

        Args:
            name: as the trace has it.

        Raises:
            ServeError: if the trace does not name it.
        """
        if name not in self.names:
            raise ServeError("expected a file that the trace names, found another", 404)
        found = self._find(name)
        return found if isinstance(found, SourceText) else self._text(found)

    def is_readable(self, name: str) -> bool:
        """Whether a file that the trace names can be read, told without reading it."""
        return not isinstance(self._find(name), SourceText)

    def is_installed(self, name: str) -> bool:
        """Whether a file is of an installed package or of Python itself, not of the project."""
        path = Path(name)
        if not path.is_absolute():
            return False
        libraries = (Path(sysconfig.get_path("stdlib")), _OURS)
        return any(part in _PACKAGES for part in path.parts) or any(
            path.is_relative_to(library) for library in libraries
        )

    def _find(self, name: str) -> Path | SourceText:
        """The file itself, or why it is not served."""
        try:
            path = self._path(Path(name))
            real = path.resolve(strict=True) if path else None
            if path is None or real is None or not real.is_file():
                return SourceText(None, "the file is not on this machine")
            if real.suffix != ".py" or real.parent != path.parent.resolve():
                return SourceText(None, "the name leads to another file, which is not shown")
            if self._folder and not path.is_absolute() and not _inside(real, self._folder):
                return SourceText(None, "the file is outside the project, and is not shown")
            return real
        except (OSError, ValueError, RuntimeError):  # a loop of links, a name that is none
            return SourceText(None, "the file is not on this machine")

    def _path(self, path: Path) -> Path | None:
        if path.is_absolute():
            return path
        within = self._folder / path if self._folder else None
        if within is None or not _inside(within.resolve(), self._folder):
            return None
        return within

    def _text(self, path: Path) -> SourceText:
        try:
            facts = path.stat()
            if facts.st_size > _LARGEST_BYTES:
                return SourceText(None, f"the file has more than {_LARGEST_BYTES:,} bytes")
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            return SourceText(None, f"the file cannot be read: {error.strerror}")
        changed = bool(self._recorded_ns) and facts.st_mtime_ns > self._recorded_ns
        return SourceText(text, "", changed)


def _inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.is_relative_to(folder.resolve())


def _named(trace: Trace) -> frozenset[str]:
    modules = trace["modules"]
    files = {name for column in ("file", "call_file") for name in modules.text(column) if name}
    frames = (frame_place(name) for name in trace.events.text("name").values)
    return frozenset(files | {place.file for place in frames if place} | _collected(trace))


def _collected(trace: Trace) -> set[str]:
    """The files of Python frames in collected contexts."""
    contexts = trace["contexts"]
    file = contexts.text("file").take(contexts.text("kind").mask("python"))
    return {name for name in file.compact().values if name}
