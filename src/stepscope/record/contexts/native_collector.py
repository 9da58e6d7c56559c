"""Collects contexts with the C++ extension, which adapters feed with what a framework does.

PyTorch's operators come from its C++ hooks, JAX's calls from the slots of a type (jax_adapter.py).
An adapter for another framework may be written in Python, on the extension's functions alone:
`begin(name)` and `end(token)` around each operator, `emit` for compilations and memory.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.base.unfinished_files import unfinished
from stepscope.record import script_runner
from stepscope.record.capture_file import CaptureFile, Member
from stepscope.record.contexts.context_options import NO_MODULES, SOURCES, ContextOptions
from stepscope.record.device_times import wait_for_devices
from stepscope.record.patch import AfterImport, Hooks, around_compilations, ignoring, replace

if TYPE_CHECKING:
    from stepscope.record.contexts.jax_adapter import JaxAdapter

# Frames to leave out: torch's own of a module call (the module has a frame), the compiler's and those of
# code that it made, JAX's.
_HIDDEN = [
    "torch/nn/modules/module.py:Module._call_impl",
    "torch/nn/modules/module.py:Module._call_impl.<locals>.inner",
    "torch/nn/modules/module.py:_call_impl",
    "*/stepscope/record/contexts/",
    "*/jax/_src/",
    "*/jaxlib/",
    "*/torch/_dynamo/",
    "*/torch/_functorch/",
    "*/torch/_inductor/",
    "*<eval_with_key>",
    "torch/_compile.py",
    "torch/_utils_internal.py",
    "torch/fx/graph_module.py",
    "torch/autograd/function.py:Function.apply",
    "torch/autograd/function.py:BackwardCFunction.apply_boxed",
]
# The stack begins with what these files run.
_BARRIERS = [str(Path(script_runner.__file__))]
# A range is opened in these files and goes on when they have returned.
_ANNOTATORS = [
    "torch/autograd/profiler.py",
    "torch/_ops.py",
    "/contextlib.py",
    "stepscope/record/contexts/monitor.py",
    "stepscope/record/contexts/native_collector.py",  # compilations
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
        windows = self._options.device and not self._follows_devices
        adapter = JaxAdapter(self._extension, windows)
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
            resolve = paths.hidden_from_compiler(self._paths)
            self._extension.watch_modules(paths.CALL_CODE, resolve)
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


# -- torch.compile: when it compiles and why again, and which source line its code comes from
# Nothing of the compiler is imported here; each part is set up when the program imports it. The
# context of a compilation includes everything that it runs. After it, torch reports what was compiled
# and why (`CompilationMetrics`), under the number that the context began with.

_COMPILES, _BEGIN, _END = 1, 0, 1  # Domain.COMPILATION and its phases (monitor.py)
_REGION, _COMPILATION = "Torch-Compiled Region: ", "torch.compile "
# By what torch calls the occasion; the backward is compiled when it first runs.
_PARTS = {
    "DYNAMO": "compilation of {}",
    "LAZY_BACKWARD": "compilation of {}, backward",
    "TRITON_AUTOTUNING": "tuning of the kernels of {}",
    "CUDAGRAPH_RECORDING": "recording of a CUDA graph of {}",
}
_REST = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")
_AGAIN = re.compile(r"/(\d+)(?:_\d+)?$")
_VALUE = re.compile(r"(expected|actual|==|!=|<=|>=|<|>) -?\d[\d.e+-]*")
_MOST_REASONS = 32  # of a program: each is a context of its own
_LONGEST = 160  # characters of a reason
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
Place = tuple[str, str, int]


class CompilerWatch(Hooks):
    """Shows compiled code as such, with its source lines."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._named: set[tuple[str, Any]] = set()
        self._reasons: set[str] = set()
        self._restore = []
        self._watches = [
            AfterImport("torch._inductor.config", self._show_kernels),
            AfterImport("torch._inductor.debug", self._follow_kernels),
        ]

    def install(self) -> None:
        """Follow what is compiled from now on; earlier compilations stay unknown."""
        for watch in self._watches:
            self._restore.append(watch.remove)
            watch.install()
        self._restore += around_compilations(self._compilation)

    def name_all(self) -> None:
        """Give what has been compiled the names and lines that the file shows."""
        self._name_compilations()
        cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        files = list(getattr(cache, "linemaps", ()))
        for key, file, line in self._extension.lines_of(files) if files else ():
            frames = cache.stack_frames_for_code(file, line) or []
            places = [(frame["name"], frame["filename"], frame["line"]) for frame in frames]
            if place := _users(places):
                self._extension.describe(key, *place)

    def _show_kernels(self) -> None:
        config: Any = sys.modules["torch._inductor.config"]
        for section, name, value in (
            (config.cpp, "enable_kernel_profile", True),
            (config.trace, "provenance_tracking_level", 1),
        ):
            before = getattr(section, name, None)
            if before is not None and not before:
                setattr(section, name, value)
                self._restore.append(functools.partial(setattr, section, name, before))

    def _follow_kernels(self) -> None:
        debug: Any = sys.modules["torch._inductor.debug"]
        trace = getattr(debug, "set_kernel_post_grad_provenance_tracing", None)
        if trace is None:
            return

        @functools.wraps(trace)
        def traced(schedule: Any, kernel: str, *args: Any, **kwargs: Any) -> Any:
            handle = trace(schedule, kernel, *args, **kwargs)
            stacks = debug._inductor_kernel_stack_trace.get(f"{kernel}:{handle}", [])
            for _, file, line in filter(None, map(_innermost, stacks[:1])):
                self._extension.locate(_shown_name(kernel), file, line)
            return handle

        self._restore.append(replace(debug, "set_kernel_post_grad_provenance_tracing", traced))

    @contextmanager
    def _compilation(self, trigger: Any = None, number: object = "", *_: object) -> Iterator[None]:
        """The context of a compilation, with everything that it runs."""
        self._name_compilations()  # torch remembers the last 64
        self._extension.emit(_COMPILES, _BEGIN, str(number))
        part = getattr(trigger, "name", "DYNAMO")
        token = self._extension.enclose(f"{_COMPILATION}{number} {part}")
        try:
            yield
        finally:
            self._extension.end(token)
            self._extension.emit(_COMPILES, _END, str(number))

    def _name_compilations(self) -> None:
        utils: Any = sys.modules.get("torch._dynamo.utils")
        with ignoring(Exception):  # torch's metrics have no stable form
            for metrics in utils.get_compilation_metrics():
                at = metrics.compile_id, metrics.start_time_us
                if metrics.compile_id and metrics.co_name and at not in self._named:
                    self._named.add(at)
                    self._name_compilation(metrics.compile_id, metrics)

    def _name_compilation(self, number: str, metrics: Any) -> None:
        name, *place = _function(metrics)
        again = self._again(number, metrics)
        describe = self._extension.describe_annotation
        describe(_REGION + number, f"compiled region {name}", *place)
        for part, what in _PARTS.items():
            shown = f"{what.format(name)}{again}"
            describe(f"{_COMPILATION}{number} {part}", shown, *place)

    def _again(self, number: str, metrics: Any) -> str:
        count = _AGAIN.search(number)
        if not count or not int(count[1]):
            return ""
        why = _plain(metrics.recompile_reason or "")
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "another reason"
        return f", again: {why}" if why else ", again"


def _innermost(stack: str) -> Place | None:
    """The user's line of a stack as text, outermost first."""
    places = _PLACE.findall(stack)
    return _users([(name.strip(), file, int(line)) for file, line, name in reversed(places)])


def _users(places: list[Place]) -> Place | None:
    """The innermost place outside torch; else the innermost."""
    home = str(Path(sys.modules["torch"].__file__ or "").parent)
    outside = [place for place in places if not place[1].startswith(home)]
    return next(iter(outside or places), None)


def _shown_name(kernel: str) -> str:
    """As the compiled code announces it when it runs: with the number of its graph."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    number = getattr(getattr(virtualized, "V", None), "graph", None)
    number = getattr(number, "graph_id", None)
    is_cpp = kernel.startswith("cpp_") and number is not None
    return f"graph_{number}_{kernel}" if is_cpp else kernel


def _function(metrics: Any) -> tuple[str, str, int]:
    """Name, file and line of what was compiled; a module of torch's own has a placeholder name."""
    name, file, line = metrics.co_name, metrics.co_filename or "", metrics.co_firstlineno or 0
    if "/torch/_dynamo/" in file:
        return "(torch)", "", 0
    if rest := _REST.fullmatch(name):
        return f"{rest['name']} after a graph break", file, int(rest["line"])
    return name, file, line


def _plain(reason: str) -> str:
    """A reason with numbers replaced, so that equal reasons are counted together.

    Example:
        >>> _plain("0/1: tensor 'x' size mismatch at index 0. expected 8, actual 9")
        "tensor 'x' size mismatch at index 0. expected #, actual #"
    """
    first = reason.strip().partition("\n")[0]
    first = re.sub(r"^[!\d/_]+: ", "", first)
    return _VALUE.sub(r"\1 #", first)[:_LONGEST]
