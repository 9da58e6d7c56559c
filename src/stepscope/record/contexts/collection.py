"""One collection of contexts, from its start to its file, which is updated during the run."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from stepscope.errors import CaptureError
from stepscope.record.capture_file import CaptureFile, Member
from stepscope.record.contexts import native_build as build
from stepscope.record.contexts.context_options import NO_MODULES, ContextOptions, FlushPlan
from stepscope.record.contexts.native_collector import NativeCollector
from stepscope.record.contexts.python_collector import PythonCollector
from stepscope.record.manifest import Result, Run, build_manifest
from stepscope.record.patch import AfterImport

_FIRST_FLUSH_S = 2.0  # after the start, so that a run that is killed soon leaves a file
_HAS_NOTHING = b'"operators":0,'
_TORCH_LATE = "torch was imported after JAX had been used: its operators are not recorded; import torch first"
_RUNNING = "the run was still going when this was written; it may have been killed later"


class Collection:
    """Collects from `start` to `close`; one at a time in a process."""

    running: ClassVar[Collection | None] = None

    def __init__(
        self, run: Run, path: Path, options: ContextOptions, keep_empty: bool = True, overwrite: bool = False
    ) -> None:
        self.run = run
        self.file = CaptureFile(path, run.rank, overwrite)
        self.options = options
        self.keep_empty = keep_empty
        self.failure: str | None = None
        self.warnings: list[str] = []
        self._collector: NativeCollector | PythonCollector | None = None
        self._jax_import = AfterImport("jax", self._follow_jax)
        self._pid = os.getpid()

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the run has forked: the file is its parent's."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Begin to collect."""
        if Collection.running is not None and not Collection.running.is_forked:
            raise CaptureError(
                f"this process already collects contexts, for {Collection.running.path}; "
                "remove the inner record_contexts"
            )
        self._collector = self._make()
        self._collector.start()
        Collection.running = self
        self._jax_import.install()
        first_s = min(_FIRST_FLUSH_S, self.options.flush_s)
        manifest = self._manifest("running", _RUNNING)
        plan = FlushPlan(self.file, manifest, self.keep_empty, first_s, self.options.flush_s)
        self._collector.flush_regularly(plan)

    def add_torch(self) -> None:
        """The program has imported torch while JAX was recorded: begin again, with both."""
        if self._collector is None or self.is_forked:
            return
        if _HAS_NOTHING not in (self._collector.content(False) or b""):
            self._collector.note(_TORCH_LATE)
            return
        self._stop()
        self._collector.release()
        self.start()

    def close(self, outcome: str, message: str) -> None:
        """Stop, and write the file for the last time; a forked child leaves both alone."""
        if self._collector is None or self.is_forked:
            return
        self._stop()
        self.write(outcome, message, complete=True)
        self._collector.release()
        self._collector = None

    def _stop(self) -> None:
        if self._collector:
            self._jax_import.remove()
            self._collector.stop_flushing()
            self._collector.stop()
        Collection.running = None

    def write(self, outcome: str, message: str, complete: bool) -> None:
        """Write the current state; a failure never stops training."""
        try:
            content = self._collector.content(complete) if self._collector else None
            if not self.keep_empty and _HAS_NOTHING in (content or b""):
                return
            manifest = self._manifest(outcome, message)
            members: dict[str, Member] = {} if content is None else {"contexts.json": content}
            members |= self._collector.members() if self._collector else {}
            self.file.write(manifest, NO_MODULES, members)
        except (OSError, RuntimeError) as error:
            self.failure = f"cannot write {self.path}: {error}"

    def _follow_jax(self) -> None:
        """The program imports JAX; it must not fail for us."""
        if self._collector is None or self.is_forked:
            return
        try:
            self._collector.follow_jax()
        except (ImportError, AttributeError, TypeError) as error:
            self._collector.note(f"JAX is not recorded: {error}")

    def _make(self) -> NativeCollector | PythonCollector:
        torch = build.loaded_torch()
        try:
            return NativeCollector(build.load(torch, _say), self.options, torch)
        except build.BuildError as error:
            self.warnings.append(f"contexts are collected by the slower Python collector: {error}")
            return PythonCollector(self.options, str(error), torch)

    def _manifest(self, outcome: str, message: str) -> dict[str, Any]:
        manifest = build_manifest(self.run, Result(outcome, message, warnings=self.warnings))
        return manifest | {"contains": ["contexts"], "options": asdict(self.options)}


def _say(line: str) -> None:
    print(f"stepscope: {line}", file=sys.stderr, flush=True)
