"""The files that are open; each is read in the background while the page shows its progress."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Literal

import msgspec

from stepscope.analyze.rule import Rule
from stepscope.errors import ServeError, StepscopeError
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView, no_other_trace
from stepscope.facts.load import open as open_trace
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    from stepscope.faces.page.job_answer import JobAnswer
    from stepscope.faces.page.watch_answer import WatchedJob

_ENDINGS = re.compile(r"(\.pt\.trace)?(\.(json|pb|stepscope|xplane))*(\.gz)?$")
State = Literal["closed", "loading", "ready", "failed", "compared"]
_READ_SHARE = 0.5  # of the progress: annotating takes about as long as reading
_POLL_S = 0.05  # s; chosen: a short delay next to reading a file


class TraceEntry(msgspec.Struct):
    """An open file."""

    id: str  # made of the file's name (letters, digits, `.`, `_`, `-`), the same the next time
    name: str  # of the file
    path: str
    state: State  # of reading it; `compared` in a single file that holds no more of it than comparisons
    progress: float  # 0 to 1; 1 only when it is ready
    message: str  # what is going on, or why it failed
    has_steps: bool = True  # false once it is read and none was recorded: nothing to compare


class Traces(msgspec.Struct):
    """The open files; poll while one is `loading`."""

    perfetto: str | None  # URL of the local Perfetto UI, null if it is not installed
    traces: list[TraceEntry]
    # what the page at `/` shows, of which the traces are parts: `All ranks`, `The whole run`; empty if
    # these traces are all there is
    whole: str = ""


class TraceFile:
    """A file, or a folder of ranks, from its name to an opened trace."""

    def __init__(
        self,
        id: str,
        path: Path,
        read: Callable[..., Trace] = open_trace,
        closed: bool = False,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.id, self.path, self._read, self._rules = id, path, read, rules
        self.state: State = "closed" if closed else "loading"
        self.progress, self.message = 0.0, "waiting"
        self._view: TraceView | None = None

    def load(self, model: Path | None, cache: bool, other: Callable[[str], Trace] = no_other_trace) -> None:
        """Read the file; errors are reported by `state` and `message`."""
        self.state, self.message = "loading", "reading"
        try:
            trace = self._read(self.path, model=model, cache=cache, progress=self._report)
            self.message = "building the timeline"
            self._view = _warmed(TraceView(trace, other, rules=self._rules))
        except StepscopeError as error:
            self._fail(str(error))
        except Exception as error:
            traceback.print_exc()
            self._fail(f"internal error, see the terminal of stepscope view: {error}")
        else:
            self.state, self.progress, self.message = "ready", 1.0, ""

    @property
    def view(self) -> TraceView:
        """The trace, once it is ready."""
        if self._view is None:
            raise ServeError(f"{self.path.name}: {self.message}", 409)
        return self._view

    def entry(self) -> TraceEntry:
        steps = self._view is None or len(self._view.trace["steps"]) > 0
        facts = (self.state, self.progress, self.message, steps)
        return TraceEntry(self.id, self.path.name, str(self.path), *facts)

    def _report(self, done: int, total: int) -> None:
        share = min(done / total, 1.0) if total else 0.0
        self.progress = share * _READ_SHARE
        if done >= total:
            self.message = "finding steps, stages and modules"

    def _fail(self, message: str) -> None:
        self.state, self.message = "failed", message
        print(f"stepscope view: {message}", file=sys.stderr, flush=True)


def _warmed(view: TraceView) -> TraceView:
    """Compute the page's first answers, so that it need not wait for them."""
    first = ("memory", "memory_tile") if view.has_only_memory else ("levels", "axis")
    with suppress(StepscopeError):  # the page's own request reports it
        for name in ("overview", *first):
            answer(view, name, Query({"path": view.start}))
    return view


class Workbench:
    """The files of one `stepscope view`.

    Args:
        paths: of files and of folders with a file for each rank.
        read: opens one, as `stepscope.open` does.
        job: the page's answer about the job that the files are of; they are then read when somebody
            asks for them.
        rules: custom rules for the findings.
        watch: the watched run that the files are recordings of; those, too, are read when asked for.

    Raises:
        ServeError: if one does not exist.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[..., Trace] = open_trace,
        job: JobAnswer | None = None,
        rules: Sequence[Rule] = (),
        watch: WatchedJob | None = None,
    ) -> None:
        for path in paths:
            if not path.exists():
                raise ServeError(f"no such file or folder: {path}")
        names = trace_ids([path.resolve().name for path in paths])
        self.job, self.watch, self._how, self._rules = job, watch, read, rules
        self.files = {
            id: TraceFile(id, path, read, job is not None, rules)
            for id, path in zip(names, paths, strict=True)
        }
        self._model: Path | None = None
        self._cache = True
        self._one_at_a_time = Lock()

    def load(self, model: Path | None = None, cache: bool = True) -> Thread:
        """Start to read the files one after the other, but for closed ones; returns the thread."""
        self._model, self._cache = model, cache
        return self._read([file for file in self.files.values() if file.state == "loading"])

    def open(self, id: str) -> None:
        """Start to read a closed file."""
        if self[id].state == "closed":
            self[id].state = "loading"
            self._read([self[id]])

    def add(self, path: Path) -> str:
        """The id of a file that is read when somebody asks for it."""
        known = [id for id, file in list(self.files.items()) if file.path == path]
        id = known[0] if known else trace_ids([*self.files, path.name])[-1]
        return self.files.setdefault(id, TraceFile(id, path, self._how, True, self._rules)).id

    def _read(self, files: Sequence[TraceFile]) -> Thread:
        def read_all() -> None:
            for file in files:
                with self._one_at_a_time:
                    file.load(self._model, self._cache, self._trace)

        # A daemon, so that Ctrl-C does not wait for a file of gigabytes.
        thread = Thread(target=read_all, name="reading", daemon=True)
        thread.start()
        return thread

    def _trace(self, id: str) -> Trace:
        self.open(id)
        while (self.job or self.watch) and self[id].state == "loading":
            time.sleep(_POLL_S)
        return self[id].view.trace

    @property
    def is_loading(self) -> bool:
        return any(file.state == "loading" for file in self.files.values())

    def __getitem__(self, id: str) -> TraceFile:
        """The file with an id."""
        if id not in self.files:
            raise ServeError(f"no such trace: {id[:80]!r}; open: {', '.join(self.files)}", 404)
        return self.files[id]


def trace_ids(names: Sequence[str]) -> list[str]:
    """An id for each file name that needs no quoting in a URL, unique."""
    found: dict[str, Iterator[int]] = {}  # with the numbers that may follow those of the same name
    for name in names:
        id = plain = re.sub(r"[^A-Za-z0-9._-]+", "-", _ENDINGS.sub("", name)).strip(".-") or "trace"
        while id in found:
            id = f"{plain}-{next(found[plain])}"
        found[id] = count(2)
    return list(found)
