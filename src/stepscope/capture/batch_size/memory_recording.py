"""The memory steps as a capture with modules, lines and every allocation, for breakdowns.

Next to the capture is what only this process knows: which storages hold parameters, gradients and
optimizer state before and after the recorded steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepscope.capture.batch_size.request import Request
from stepscope.capture.capture_file import write_capture
from stepscope.capture.manifest import Result, Run, build_manifest
from stepscope.capture.memory.memory_recorder import list_storages
from stepscope.capture.memory.operator_lines import Creations, LineRanges
from stepscope.capture.module_ranges import ModuleRanges
from stepscope.capture.module_registry import ModuleRegistry, describe_registry
from stepscope.capture.options import RecordOptions
from stepscope.capture.profiler_window import ProfilerWindow

_OPTIONS = RecordOptions(warmup=0, steps=0, memory=True)


class Recording:
    """One capture, from the first call of a model to the file."""

    def __init__(self, request: Request) -> None:
        assert request.capture is not None
        self.registry = ModuleRegistry()
        self.optimizers: dict[int, Any] = {}
        self.inputs: Any = ()
        self._request = request
        self._path = Path(request.capture)
        self._ranges = ModuleRanges(self.registry)
        self._lines = LineRanges()
        self._creations = Creations()
        self._storages: dict[str, Any] = {}
        self._steps: list[int] = []
        self._window: ProfilerWindow | None = None
        self._ranges.install()

    def start(self, step: int) -> ProfilerWindow:
        """Begin to record; `step` is the number of the step that begins."""
        self.registry.refresh()
        self._creations.close()
        self._storages["before"] = self._list()
        self._window = ProfilerWindow(_OPTIONS, step, None)
        self._lines.start()
        self._window.begin_step()
        return self._window

    def stop(self, steps: list[int]) -> None:
        """The steps are over."""
        self._lines.stop()
        self._ranges.remove()
        self._steps = steps
        self._storages["after"] = self._list()

    def write(self) -> None:
        """Write the capture and its companion, `NAME.storages.json`; the window is closed."""
        assert self._window is not None
        command = [self._request.entry, *self._request.arguments]
        result = Result("complete", "recorded", self._steps[-1] + 1, self._steps)
        manifest = build_manifest(Run(command, _OPTIONS), result)
        modules = describe_registry(self.registry)
        write_capture(self._path, manifest, modules, {"trace.json": self._window.export})
        storages = self._path.with_suffix(".storages.json")
        storages.write_text(json.dumps(self._storages), encoding="utf-8")

    def _list(self) -> list[dict[str, Any]]:
        made_at = self._creations.lines
        return list_storages(self.registry, self.optimizers.values(), made_at, self.inputs)
