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


class Collector:
    """Collects contexts: in C++, or in Python where the extension cannot be built."""

    def start(self) -> None:
        """Begin to collect."""
        raise NotImplementedError

    def follow_jax(self) -> None:
        """Collect what JAX does too, from now on; the program has imported it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop collecting; what was collected can still be read."""
        raise NotImplementedError

    def content(self, complete: bool) -> bytes | None:
        """The current content of contexts.json."""
        raise NotImplementedError

    def flush_regularly(self, plan: FlushPlan) -> None:
        """Keep the file up to date from now on."""
        raise NotImplementedError

    def stop_flushing(self) -> None:
        """No write is under way when it returns."""
        raise NotImplementedError

    def note(self, sentence: str) -> None:
        """Add a sentence for readers of the file."""
        raise NotImplementedError

    def members(self) -> dict[str, bytes]:
        """Further members of the capture, by name."""
        return {}

    def release(self) -> None:
        """Free the memory of a stopped collector."""
