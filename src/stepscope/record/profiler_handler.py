"""A capture from the user's own torch.profiler."""

import re
import sys
import weakref
from pathlib import Path
from typing import Any

from stepscope.base.unfinished_files import unfinished_file
from stepscope.record.capture_file import CaptureFile, Member
from stepscope.record.inductor_graphs import InductorGraphs
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry, describe_registry
from stepscope.record.options import Rank, RecordOptions
from stepscope.record.profiler_window import export_trace
from stepscope.record.ranges import end_open_ranges

_CHUNK_BYTES = 1 << 20  # read at once
_STEP = re.compile(rb'"ProfilerStep#(\d+)"')
_LONGEST_STEP_BYTES = 40  # of a name, kept from one chunk to the next


class TraceHandler:
    """The `on_trace_ready` function, created before the steps to record."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.registry = ModuleRegistry()
        self._ranges = ModuleRanges(self.registry)
        self._compiled = InductorGraphs(self.registry, self._ranges)
        self._path, self._overwrite = path, overwrite
        self._rank = Rank.from_environment()
        self._written = 0
        self._ranges.install()

    def __call__(self, profiler: Any) -> None:
        end_open_ranges()
        self._remove_ranges_after(profiler)
        path = self._next_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path, "trace") as trace:
            export_trace(profiler, trace)
            steps = recorded_steps(trace)
            result = RunResult("complete", "recorded by the script's own torch.profiler", len(steps), steps)
            recorded = profiler.profile_memory, profiler.record_shapes, profiler.with_stack
            manifest = build_manifest(Run(sys.argv, RecordOptions(0, 0, *recorded)), result)
            file = CaptureFile(path, self._rank, self._overwrite)
            members: dict[str, Member] = {"trace.json": trace.replace}
            if compiled := self._compiled.describe():
                members["compiled.json"] = compiled
            file.write(manifest, describe_registry(self.registry), members)

    def _remove_ranges_after(self, profiler: Any) -> None:
        """A profiler with a schedule may record again while it lives."""
        if not profiler.record_steps:
            self._remove()
        elif self._written == 0:
            weakref.finalize(profiler, self._remove)

    def _remove(self) -> None:
        self._ranges.remove()
        self._compiled.remove()

    def _next_path(self) -> Path:
        self._written += 1
        if self._written == 1:
            return self._path
        return self._path.with_name(f"{self._path.stem}-{self._written}{self._path.suffix}")


def recorded_steps(trace: Path) -> list[int]:
    """The steps in a torch.profiler trace, found without loading all of it."""
    steps: set[int] = set()
    rest = b""
    with trace.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            text = rest + chunk
            steps.update(int(number) for number in _STEP.findall(text))
            rest = text[-_LONGEST_STEP_BYTES:]
    return sorted(steps)
