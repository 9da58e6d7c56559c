"""What to collect, the kinds of frames that are collected, and how the file is kept up to date."""

from dataclasses import dataclass
from typing import Any

from stepscope.record.capture_file import CaptureFile

SOURCES = {"python": 1, "module": 2, "operator": 4, "native": 8, "kernel": 16}
# Kinds of frames by their numbers, as native/snapshot.cpp lists them.
KINDS = (
    "root",
    "thread",
    "python",
    "module",
    "operator",
    "annotation",
    "runtime",
    "native",
    "kernel",
    "instruction",
)
# The content of modules.json: contexts have their modules in the tree.
NO_MODULES: dict[str, Any] = {"roots": []}


@dataclass(frozen=True)
class ContextOptions:
    """What to collect, as in `stepscope.record_contexts`."""

    python: bool = True
    modules: bool = True
    native: bool = False
    device: bool = True
    memory: bool = False
    sample: int = 0
    sample_real: int = 0
    perf: bool = False
    stalls: bool = False
    limit: int = 1 << 20  # contexts to keep at most
    flush_s: float = 30.0  # how often the file is written during the run, seconds

    @property
    def samples(self) -> bool:
        return bool(self.sample or self.sample_real)

    @property
    def sources(self) -> int:
        """The kinds of frames, as the collector numbers them."""
        wanted = {
            "python": self.python,
            "module": self.modules,
            "operator": True,
            "native": self.native,
            "kernel": self.device,
        }
        return sum(SOURCES[name] for name, on in wanted.items() if on)


@dataclass(frozen=True)
class FlushPlan:
    """How the file is kept up to date during the run, so that a killed run leaves one."""

    file: CaptureFile  # the capture to write
    manifest: dict[str, Any]  # the content of its manifest.json
    keep_empty: bool  # write a file even where no operator has run
    first_s: float  # when to write first, seconds; each later wait is twice as long, up to `interval_s`
    interval_s: float
