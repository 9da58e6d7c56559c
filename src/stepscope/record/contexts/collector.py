"""What a collector of contexts does; the native one is optional, and one in Python replaces it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.record.capture_file import CaptureFile

# The content of modules.json: contexts have their modules in the tree.
NO_MODULES: dict[str, Any] = {"roots": []}


@dataclass(frozen=True)
class FlushPlan:
    """How the file is kept up to date during the run, so that a killed run leaves one.

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
