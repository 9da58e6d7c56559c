"""The files that are open, each read in the background while the page already shows how far."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from stepscope.errors import ServeError, StepscopeError
from stepscope.opening import open as open_trace
from stepscope.serve.opened import OpenTrace, no_other
from stepscope.serve.query import Query
from stepscope.serve.routes import answer
from stepscope.trace.trace import Trace

_ENDINGS = re.compile(r"(\.pt\.trace)?(\.(json|pb|stepscope|xplane))*(\.gz)?$")
_LOADING, _READY, _FAILED = "loading", "ready", "failed"


class TraceFile:
    """A file, or a folder of ranks, from its name to an opened trace.

    Args:
        id: names it in URLs.
        path: where it is.

    Attributes:
        state: loading, ready or failed.
        progress: share of the bytes read, 0 to 1.
        message: what is going on, or why it failed.
    """

    def __init__(self, id: str, path: Path) -> None:
        self.id, self.path = id, path
        self.state, self.progress, self.message = _LOADING, 0.0, "waiting"
        self._opened: OpenTrace | None = None

    def load(
        self, model: Path | None, cache: bool, other: Callable[[str], Trace] = no_other
    ) -> None:
        """Read the file; whatever goes wrong is told by `state` and `message`."""
        self.message = "reading"
        try:
            trace = open_trace(self.path, model=model, cache=cache, progress=self._tell)
            self.progress, self.message = 1.0, "building the timeline"
            self._opened = _warmed(OpenTrace(trace, other))
        except StepscopeError as error:
            self._fail(str(error))
        except Exception as error:
            traceback.print_exc()
            self._fail(f"a fault of stepscope's own, told on its terminal: {error}")
        else:
            self.state, self.message = _READY, ""

    @property
    def opened(self) -> OpenTrace:
        """The trace, once it is ready.

        Raises:
            ServeError: if it is not.
        """
        if self._opened is None:
            raise ServeError(f"{self.path.name}: {self.message}", 409)
        return self._opened

    def to_json(self) -> dict[str, Any]:
        """How it stands."""
        return {
            "id": self.id,
            "name": self.path.name,
            "path": str(self.path),
            "state": self.state,
            "progress": self.progress,
            "message": self.message,
        }

    def _tell(self, done: int, total: int) -> None:
        self.progress = min(done / total, 1.0) if total else 0.0
        if done >= total:
            self.message = "finding steps, stages and modules"

    def _fail(self, message: str) -> None:
        self.state, self.message = _FAILED, message
        print(f"stepscope view: {message}", file=sys.stderr, flush=True)


def _warmed(opened: OpenTrace) -> OpenTrace:
    """Ask what the page asks first, so that it need not wait for what is worked out only once."""
    with suppress(StepscopeError):  # as it will be told
        for name, query in (("overview", {}), ("levels", {"path": opened.start})):
            answer(opened, name, Query(query))
    return opened


class Workbench:
    """The files of one `stepscope view`, or of one report.

    Args:
        paths: of files and of folders with a file for each rank.

    Raises:
        ServeError: if one does not exist.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.exists():
                raise ServeError(f"expected a file or folder, found nothing at {path}")
        names = _ids([path.resolve().name for path in paths])
        self.files = {id: TraceFile(id, path) for id, path in zip(names, paths, strict=True)}

    def load(self, model: Path | None = None, cache: bool = True) -> Thread:
        """Begin to read the files, one after the other; returns the thread that does."""

        def read_all() -> None:
            for file in self.files.values():
                file.load(model, cache, self._trace)

        # A daemon, so that Ctrl-C need not wait for a file of gigabytes.
        thread = Thread(target=read_all, name="reading", daemon=True)
        thread.start()
        return thread

    def _trace(self, id: str) -> Trace:
        return self[id].opened.trace

    @property
    def is_loading(self) -> bool:
        """Whether a file is not read yet."""
        return any(file.state == _LOADING for file in self.files.values())

    def __getitem__(self, id: str) -> TraceFile:
        """The file with an id.

        Raises:
            ServeError: if there is none.
        """
        if id not in self.files:
            raise ServeError(f"expected a trace of {', '.join(self.files)}, found {id[:80]!r}", 404)
        return self.files[id]


def _ids(names: Sequence[str]) -> list[str]:
    """A name for each file that needs no quoting in a URL, different from the others'."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", _ENDINGS.sub("", name)).strip(".-") or "trace"
        number = 1
        id = plain
        while id in found:
            number += 1
            id = f"{plain}-{number}"
        found.append(id)
    return found
