"""How the capture is kept fresh while the run goes on, so that a run that is killed leaves one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stepscope.capture.capture_file import CaptureFile

# The content of modules.json: contexts have their modules in the tree.
NO_MODULES: dict[str, Any] = {"roots": []}


@dataclass(frozen=True)
class FlushPlan:
    """What to write, and how often.

    Attributes:
        file: the capture to write.
        manifest: the content of its manifest.json.
        keep_empty: write a file even where no operator has run.
        first_s: when to write first, seconds; each later wait is twice as long, up to `interval_s`.
    """

    file: CaptureFile
    manifest: dict[str, Any]
    keep_empty: bool
    first_s: float
    interval_s: float


class DueFlush:
    """Writes the capture from the program's own threads, whenever that is due.

    Args:
        content: contexts.json as it stands; its argument says whether the run is complete.
    """

    def __init__(self, content: Callable[[bool], bytes]) -> None:
        self._content = content
        self._plan: FlushPlan | None = None
        self._wait_s = self._due_s = 0.0

    def begin(self, plan: FlushPlan) -> None:
        """Write by a plan from now on."""
        self._plan, self._wait_s = plan, plan.first_s
        self._due_s = time.monotonic() + self._wait_s

    def end(self) -> None:
        """Write no more."""
        self._plan = None

    def if_due(self) -> None:
        """Write if it is time."""
        if self._plan and time.monotonic() >= self._due_s:
            with suppress(OSError):  # reported when the run has ended and it fails again
                self._plan.file.write(
                    self._plan.manifest, NO_MODULES, {"contexts.json": self._content(False)}
                )
            self._wait_s = min(2 * self._wait_s, self._plan.interval_s)
            self._due_s = time.monotonic() + self._wait_s
