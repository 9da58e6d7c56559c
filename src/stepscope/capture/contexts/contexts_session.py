"""The contexts of a program that `stepscope run --contexts` runs."""

from __future__ import annotations

from pathlib import Path

from stepscope.capture.capture_file import CaptureFile
from stepscope.capture.contexts.collection import Collection
from stepscope.capture.contexts.context_options import ContextOptions
from stepscope.capture.manifest import Result, Run
from stepscope.capture.session import Ending
from stepscope.errors import CaptureError

_NO_FRAMEWORK = "it imported neither torch nor JAX"


class ContextSession:
    """The session of a run that collects from the import of a framework to the end.

    Args:
        run: who runs what.
        path: the file to write.
        options: what to collect.
        overwrite: replace an earlier capture.
    """

    def __init__(
        self, run: Run, path: Path, options: ContextOptions, overwrite: bool = False
    ) -> None:
        self.run = run
        self.result: Result | None = None
        self._collection = Collection(run, path, options, overwrite=overwrite)
        self._has_begun = False

    @property
    def file(self) -> CaptureFile:
        """The file to write."""
        return self._collection.file

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.file.path

    @property
    def failure(self) -> str | None:
        """Why there is no file, if there is none."""
        return self._collection.failure

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the run has forked."""
        return self._collection.is_forked

    def attach(self) -> None:
        """Begin to collect; torch must have been imported."""
        if self._has_begun:
            self._collection.add_torch()
        else:
            self._begin()

    def attach_jax(self) -> None:
        """Begin to collect, unless torch came first; JAX must have been imported."""
        if not self._has_begun:
            self._begin()

    def _begin(self) -> None:
        self._has_begun = True
        try:
            self._collection.start()
        except CaptureError as error:
            self._collection.failure = f"no contexts: {error}"

    def finish(self, ending: Ending) -> None:
        """Write the file; a forked child leaves it alone."""
        if self.result is not None or self.is_forked:
            return
        if not self._has_begun:
            self._collection.failure = f"the run {ending.detail}; {_NO_FRAMEWORK}"
        if self.failure:
            return
        outcome = "complete" if ending.outcome == "ended" else ending.outcome
        message = f"the run {ending.detail}; collected the contexts of the whole run"
        self._collection.finish(outcome, message)
        self.result = Result(outcome, message, warnings=tuple(self._collection.warnings))
