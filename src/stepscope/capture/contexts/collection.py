"""One collection of contexts, from its start to its file, which is kept fresh meanwhile."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stepscope.capture.archive import write_capture
from stepscope.capture.contexts import build
from stepscope.capture.contexts.native import NativeCollector, loaded_torch
from stepscope.capture.contexts.options import ContextOptions
from stepscope.capture.manifest import Result, Run, build_manifest
from stepscope.errors import CaptureError

_FIRST_FLUSH_S = 2.0
_DRAIN_S = 0.25


class Collector(Protocol):
    """What counts: in C++, or in Python where that cannot be had."""

    kind: str

    def start(self) -> None:
        """Begin to count."""

    def stop(self) -> None:
        """Count no more."""

    def content(self, complete: bool) -> bytes | None:
        """contexts.json as it stands."""

    def drain(self) -> None:
        """Make room for more samples."""

    def note(self, sentence: str) -> None:
        """Something for a reader of the file to know."""

    def release(self) -> None:
        """Free the memory of a stopped collector."""


class Collection:
    """Collects from `start` to `finish`; one at a time in a process.

    Args:
        run: who runs what.
        path: the file to write.
        options: what to collect.
        keep_empty: write a file even where no operator ran.
    """

    running: ClassVar[Collection | None] = None

    def __init__(
        self, run: Run, path: Path, options: ContextOptions, keep_empty: bool = True
    ) -> None:
        self.run = run
        self.path = path
        self.options = options
        self.keep_empty = keep_empty
        self.failure: str | None = None
        self.warnings: list[str] = []
        self._collector: Collector | None = None
        self._flusher: _Flusher | None = None
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the run has forked: the file is its parent's."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Begin to collect.

        Raises:
            CaptureError: contexts are being collected already.
        """
        if Collection.running is not None and not Collection.running.is_forked:
            raise CaptureError(
                "expected to begin collecting contexts, found that this process collects them "
                f"already, for {Collection.running.path}; leave out the inner one"
            )
        self._collector = self._make()
        self._collector.start()
        Collection.running = self
        self._flusher = _Flusher(self, self.options.flush_s)
        self._flusher.start()

    def finish(self, outcome: str, message: str) -> None:
        """Stop, and write the file for the last time; a forked child leaves both alone."""
        if self._collector is None or self.is_forked:
            return
        if self._flusher:
            self._flusher.end()
        self._collector.stop()
        Collection.running = None
        self.write(outcome, message, complete=True)
        self._collector.release()
        self._collector = None

    def write(self, outcome: str, message: str, complete: bool) -> None:
        """Write what is known by now; training goes on whatever comes of it."""
        try:
            content = self._collector.content(complete) if self._collector else None
            if not self.keep_empty and b'"operators":0,' in (content or b""):
                return
            manifest = self._manifest(outcome, message)
            write_capture(self.path, manifest, {"roots": []}, None, content)
        except (OSError, RuntimeError) as error:
            self.failure = f"cannot write {self.path}: {error}"

    def drain(self) -> None:
        """Make room for more samples."""
        if self._collector:
            self._collector.drain()

    def _make(self) -> Collector:
        torch = loaded_torch()
        try:
            extension = build.load(torch, _say)
        except build.BuildError as error:
            self.warnings.append(f"contexts are collected in Python, which sees less: {error}")
            from stepscope.capture.contexts.fallback import PythonCollector

            return PythonCollector(self.options, str(error))
        return NativeCollector(extension, self.options, torch)

    def _manifest(self, outcome: str, message: str) -> dict[str, Any]:
        manifest = build_manifest(self.run, Result(outcome, message, warnings=self.warnings))
        return manifest | {"contains": ["contexts"], "options": asdict(self.options)}


def _say(line: str) -> None:
    print(f"stepscope: {line}", file=sys.stderr, flush=True)


class _Flusher(threading.Thread):
    """Writes the file now and then, so that a run that is killed leaves one."""

    def __init__(self, collection: Collection, interval_s: float) -> None:
        super().__init__(name="stepscope", daemon=True)
        self._collection = collection
        self._interval_s = interval_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `end`; the first time soon, as the run may be short."""
        wait = min(_FIRST_FLUSH_S, self._interval_s)
        while not self._has_ended_within(wait):
            message = "the run went on when this was written; it may have been killed since"
            self._collection.write("running", message, complete=False)
            wait = min(wait * 2, self._interval_s)

    def _has_ended_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._collection.options.samples and time.monotonic() < until:
            if self._ended.wait(_DRAIN_S):
                return True
            self._collection.drain()
        return self._ended.wait(max(until - time.monotonic(), 0))

    def end(self) -> None:
        """No write is under way when it returns."""
        self._ended.set()
        self.join()
