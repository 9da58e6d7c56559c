"""Collects contexts with the C++ extension, which adapters feed with what a framework does.

PyTorch's operators come from its C++ hooks, JAX's calls from the slots of a type (jax_adapter.py).
An adapter for another framework may be written in Python, on the extension's functions alone:
`begin(name)` and `end(token)` around each operator, `emit` for compilations and memory.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.base.unfinished_files import unfinished
from stepscope.record import script_runner
from stepscope.record.capture_file import CaptureFile, Member
from stepscope.record.contexts.compiler_watch import HIDDEN, CompilerWatch
from stepscope.record.contexts.context_options import NO_MODULES, SOURCES, ContextOptions
from stepscope.record.device_times import wait_for_devices

if TYPE_CHECKING:
    from stepscope.record.contexts.jax_adapter import JaxAdapter

# Frames to leave out: torch's own of a module call (the module has a frame), the compiler's, JAX's.
_HIDDEN = [
    "torch/nn/modules/module.py:Module._call_impl",
    "torch/nn/modules/module.py:Module._call_impl.<locals>.inner",
    "torch/nn/modules/module.py:_call_impl",
    "*/stepscope/record/contexts/",
    "*/jax/_src/",
    "*/jaxlib/",
    *HIDDEN,
]
# The stack begins with what these files run.
_BARRIERS = [str(Path(script_runner.__file__))]
# A range is opened in these files and goes on when they have returned.
_ANNOTATORS = [
    "torch/autograd/profiler.py",
    "torch/_ops.py",
    "/contextlib.py",
    "stepscope/record/contexts/monitor.py",
    "stepscope/record/contexts/compiler_watch.py",
    "stepscope/record/patch.py",
    "stepscope/record/jax/program_ranges.py",
]


class NativeCollector:
    """Collects through the C++ extension."""

    def __init__(self, extension: Any, options: ContextOptions, torch: Any) -> None:
        self._extension = extension
        self._options = options
        self._follows_devices = False
        self._flushed: CaptureFile | None = None
        self._adapters: list[PyTorchAdapter | JaxAdapter] = []
        if torch:
            self._adapters.append(PyTorchAdapter(extension, options))

    def start(self) -> None:
        options = self._options
        self._extension.hide(_HIDDEN, _BARRIERS, _ANNOTATORS)
        self._extension.release()
        hindrances = self._follow_devices()
        follows = self._follows_devices or options.drivers
        sources = options.sources & ~(0 if follows else SOURCES["kernel"])
        self._extension.start(sources, options.limit, options.sample, options.sample_real, options.perf)
        for sentence in hindrances:
            self.note(sentence)
        if options.perf and (missing := self._extension.counters_missing()):
            self.note(missing)
        for adapter in self._adapters:
            adapter.attach()

    def follow_jax(self) -> None:
        from stepscope.record.contexts.jax_adapter import JaxAdapter

        # Where a device's own library reports its work, that is in the tree already.
        adapter = JaxAdapter(self._extension, self._options.device and not self._follows_devices)
        self._adapters.append(adapter)
        adapter.attach()

    def _follow_devices(self) -> list[str]:
        """Follow the devices that are present; returns sentences about what is unavailable."""
        from stepscope.record.contexts.capability_probe import permission_missing  # also run by `python -m`

        options = self._options
        unsampled = permission_missing() if options.stalls else ""
        hindered = ""
        if options.device:
            stalls = options.stalls and not unsampled
            self._follows_devices, hindered, missing = self._extension.follow_devices(True, stalls)
            unsampled = unsampled or missing
        if options.stalls and not self._follows_devices:
            unsampled = "no device is followed"
        unfollowed = self._extension.follow_libraries(options.drivers) if options.drivers else ""
        lacks = {
            "no device is followed": hindered,
            "instructions are not sampled": unsampled,
            "no other library is followed": unfollowed,
        }
        return [f"{what}: {why}" for what, why in lacks.items() if why]

    def stop(self) -> None:
        for adapter in self._adapters:
            adapter.detach()
        if self._follows_devices:
            self.fetch_device_work()
            self._extension.follow_devices(False)
        if self._options.drivers:
            self._extension.follow_libraries(())
        self._extension.stop()

    def fetch_device_work(self) -> None:
        """Wait for what was launched, and for the records of it."""
        wait_for_devices()  # launched work belongs to the tree even if it is not finished
        self._extension.flush_devices()

    def content(self, complete: bool) -> bytes | None:
        for adapter in self._adapters:
            adapter.name_contexts()
        if self._follows_devices and not complete:
            self._extension.flush_devices()
        return self._extension.snapshot(complete)

    def members(self) -> dict[str, Member]:
        """Further members of the capture: profiles of windows."""
        return dict(self._extension.windows())

    def flush_regularly(
        self, file: CaptureFile, manifest: dict[str, Any], first_s: float, keep_empty: bool
    ) -> None:
        """Keep the file up to date, from a thread that Python does not see, so that a killed run leaves one.

        After `first_s` each wait is twice as long, up to that of the options; with `keep_empty` also a
        file is written where no operator has run.
        """
        self._flushed = file
        path, kept, base, before = file.flush_target()
        paths = [os.fsencode(name or "") for name in (path, unfinished(path), kept, base)]
        parts = (json.dumps(part).encode() for part in (manifest, NO_MODULES))
        self._extension.flush_regularly(*paths, before, *parts, first_s, self._options.flush_s, keep_empty)

    def stop_flushing(self) -> None:
        written = self._extension.stop_flushing()
        if self._flushed and written:
            self._flushed.adopt(*written)

    def note(self, sentence: str) -> None:
        self._extension.note(sentence)

    def release(self) -> None:
        self._adapters.clear()
        self._extension.release()


class PyTorchAdapter:
    """Reports PyTorch's operators."""

    def __init__(self, extension: Any, options: ContextOptions) -> None:
        self._extension = extension
        self._options = options
        self._paths: Any = None
        self._compiler = CompilerWatch(extension)

    def attach(self) -> None:
        if self._options.modules:
            from stepscope.record.contexts import module_paths as paths

            self._paths = paths.ModulePaths(self._extension)
            self._extension.watch_modules(paths.CALL_CODE, paths.hidden_from_compiler(self._paths))
        if self._options.memory and (problem := self._extension.watch_memory(True)):
            self._extension.note(f"memory is not counted: {problem}")
        self._compiler.install()
        self._extension.follow_pytorch(True)

    def detach(self) -> None:
        self._extension.follow_pytorch(False)
        if self._paths is not None:
            self._paths.close()
        self._compiler.remove()
        self._extension.watch_memory(False)

    def name_contexts(self) -> None:
        if self._paths is not None:
            self._paths.name_all()
        self._compiler.name_all()
