"""The source files of the traced project: those that the trace names, and no others."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import ServeError
from stepscope.timeline.source_lines import frame_place
from stepscope.trace.trace import Trace

_MAX_BYTES = 2_000_000
_OURS = Path(__file__).parents[1]
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class SourceText:
    """A source file: its text, or the reason why there is none.

    Attributes:
        text: None if it cannot be read.
        reason: why not, else empty.
        changed: whether it was written after the recording.
    """

    text: str | None
    reason: str = ""
    changed: bool = False


class SourceFiles:
    """The files that a trace names for modules, their calls, and Python frames.

    A trace may come from anyone. So only Python files are read, and a relative name is resolved in
    the folder that the recorded program ran in, never outside it.

    Args:
        trace: an annotated trace.
        root: a folder of the user's choice: relative names are resolved in it, and no file outside
            it is read, wherever links lead.

    Attributes:
        names: of the files, as recorded.
        root: as given.
    """

    def __init__(self, trace: Trace, root: Path | None = None) -> None:
        self.names, self.root = _named(trace), root
        capture = trace.metadata.capture
        cwd = capture.get("cwd")
        recorded = Path(cwd) if isinstance(cwd, str) and Path(cwd).is_absolute() else None
        self._folder = root or recorded
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
            raise ServeError("this trace does not name the file", 404)
        found = self._find(name)
        return found if isinstance(found, SourceText) else self._text(found)

    def is_readable(self, name: str) -> bool:
        """Whether a file that the trace names can be read; does not read it."""
        return not isinstance(self._find(name), SourceText)

    def is_installed(self, name: str) -> bool:
        """Whether a file belongs to an installed package or to Python itself."""
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
                return SourceText(None, "the name is a link to another file, which is not shown")
            if self.root and not _inside(real, self.root):
                return SourceText(None, "the file is outside the source folder")
            if not Path(name).is_absolute() and not _inside(real, self._folder):
                return SourceText(None, "the file is outside the project")
            return real
        except (OSError, ValueError, RuntimeError):  # a loop of links, an invalid name
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
            if facts.st_size > _MAX_BYTES:
                return SourceText(None, f"the file is larger than {_MAX_BYTES:,} bytes")
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
