"""The three ways to collect contexts: `stepscope run --contexts`, a `with` block, a variable."""

import atexit
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from stepscope.errors import CaptureError
from stepscope.record.capture_file import CaptureFile, Member, check_target
from stepscope.record.contexts import native_build as build
from stepscope.record.contexts.context_options import NO_MODULES, ContextOptions, read_drivers
from stepscope.record.contexts.native_collector import NativeCollector
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.options import RecordOptions, belongs_to_parent, script_name, target_path
from stepscope.record.patch import AfterImport, ignoring, pass_on
from stepscope.record.process_exit import say
from stepscope.record.session import Ending, OfOneProcess
from stepscope.record.unreplaced import os

_FIRST_FLUSH_S = 2.0  # after the start, so that a run that is killed soon leaves a file
_HAS_NOTHING = b'"operators":0,'
_TORCH_LATE = "torch was imported after JAX had been used: its operators are not recorded; import torch first"
_RUNNING = "the run was still going when this was written; it may have been killed later"
_VARIABLE = "STEPSCOPE_CONTEXTS"
_NO_FRAMEWORK = "it imported neither torch nor JAX"


class Collection(OfOneProcess):
    """Collects from `start` to `close`; one at a time in a process."""

    running: "ClassVar[Collection | None]" = None

    def __init__(
        self, run: Run, path: Path, options: ContextOptions, keep_empty: bool = True, overwrite: bool = False
    ) -> None:
        super().__init__()
        self.run = run
        self.file = CaptureFile(path, run.rank, overwrite)
        self.options = options
        self.keep_empty = keep_empty
        self.failure: str | None = None
        self.result: RunResult | None = None
        self.warnings: list[str] = []
        self._collector: NativeCollector | None = None
        self._jax_import = AfterImport("jax", self._follow_jax)

    @property
    def path(self) -> Path:
        return self.file.path

    def start(self) -> None:
        """Begin to collect."""
        if Collection.running is not None and not Collection.running.is_forked:
            raise CaptureError(
                f"this process already collects contexts, for {Collection.running.path}; "
                "remove the inner record_contexts"
            )
        torch = sys.modules.get("torch")
        try:
            self._collector = NativeCollector(build.load(torch, say), self.options, torch)
        except build.BuildError as error:
            raise CaptureError(f"{error}; without it, `stepscope run --stack` records lines") from None
        self._collector.start()
        Collection.running = self
        self._jax_import.install()
        first_s = min(_FIRST_FLUSH_S, self.options.flush_s)
        manifest = self._manifest("running", _RUNNING)
        self._collector.flush_regularly(self.file, manifest, first_s, self.keep_empty)

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

    def close(self, ending: Ending, of: str) -> None:
        """Stop, and write the file for the last time; a forked child leaves both alone.

        `of` is what has ended, the run or the block.
        """
        if self._collector is None or self.is_forked:
            return
        self._stop()
        outcome = "complete" if ending.outcome == "ended" else ending.outcome
        message = f"the {of} {ending.detail}; collected the contexts of the whole {of}"
        self.result = RunResult(outcome, message, warnings=tuple(self.warnings))
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
        if (collector := self._collector) is None or self.is_forked:
            return
        with ignoring(Exception, then=lambda error: collector.note(f"JAX is not recorded: {error}")):
            collector.follow_jax()

    def _manifest(self, outcome: str, message: str) -> dict[str, Any]:
        manifest = build_manifest(self.run, RunResult(outcome, message, warnings=self.warnings))
        return manifest | {"contains": ["contexts"], "options": asdict(self.options)}


class ContextSession(Collection):
    """The session of a run that collects from the import of a framework to the end."""

    _has_begun = False

    def attach(self) -> None:
        if self._has_begun:
            self.add_torch()
        self.attach_jax()

    def attach_jax(self) -> None:
        """Begin to collect, unless torch came first; JAX must have been imported."""
        if self._has_begun:
            return
        self._has_begun = True
        try:
            self.start()
        except Exception as error:  # the program's import goes on
            pass_on(error)
            self.failure = f"no contexts: {error}"

    def finish(self, ending: Ending) -> None:
        """Write the file; a forked child leaves it alone."""
        if self.result is not None or self.is_forked:
            return
        if not self._has_begun:
            self.failure = f"the run {ending.detail}; {_NO_FRAMEWORK}"
        if self.failure:
            return
        self.close(ending, "run")


class record_contexts:
    """Collect the calling contexts of a `with` block, however long, at bounded memory.

    Inside another such block, or under `stepscope run --contexts`, the outer one goes on collecting
    and this one only says so.

    Args:
        path: the file to write; by default named after the script.
        python: frames of Python.
        modules: calls of `nn.Module` in place of torch's own frames.
        native: C++ frames, taken where a context is met for the first time.
        device: kernels and copies of a GPU, where its library can be loaded.
        memory: allocations and releases.
        sample: samples a second of each thread's CPU time; 0 for none.
        sample_real: samples a second of elapsed time; 0 for none.
        perf: hardware counters with each sample.
        stalls: samples of the device's instructions by what they wait for, where the device allows
            it; kernels run one after the other meanwhile.
        drivers: a file that names functions of other devices' libraries, to record their calls.

    Raises:
        CaptureError: the file cannot be written, is something other than a capture, or `drivers` is wrong.

    Example:
        with stepscope.record_contexts("train.stepscope"):
            train(model, batches)
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        python: bool = True,
        modules: bool = True,
        native: bool = False,
        device: bool = True,
        memory: bool = False,
        sample: int = 0,
        sample_real: int = 0,
        perf: bool = False,
        stalls: bool = False,
        drivers: str | Path | None = None,
    ) -> None:
        functions = read_drivers(drivers)
        options = ContextOptions(
            python, modules, native, device, memory, sample, sample_real, perf, stalls, drivers=functions
        )
        run = Run(list(sys.argv), RecordOptions())
        self._collection = Collection(run, target_path(path, script_name(), run.rank), options)
        self._is_inner = False

    @property
    def path(self) -> Path:
        """The file that the capture goes to."""
        return self._collection.path

    def __enter__(self) -> "record_contexts":
        outer = Collection.running
        if outer is not None and not outer.is_forked:
            self._is_inner = True
            say(f"contexts are collected already, for {outer.path}")
            return self
        check_target(self.path)
        try:
            self._collection.start()
        except CaptureError as error:  # such as no compiler: the block runs all the same
            self._collection.failure = f"no contexts: {error}"
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._is_inner:
            return
        self._collection.close(Ending.of_block(error), "block")
        if self._collection.failure:
            say(self._collection.failure)


# -- STEPSCOPE_CONTEXTS=FILE, for a job whose code and command cannot change


def begin() -> None:
    """Begin to collect; the file is written now and then, and when the process ends.

    PyTorch calls `stepscope.autoload` when it is imported (2.5 and later), as it calls every entry
    point of the group `torch.backends`. Whatever goes wrong here, the import of PyTorch goes on.
    """
    with ignoring(Exception, then=lambda error: say(f"no contexts are collected: {error}")):
        _begin(os.environ[_VARIABLE])


def _begin(output: str) -> None:
    import multiprocessing  # not in programs without the variable

    is_worker = multiprocessing.current_process().daemon  # a data loader's
    is_ours = "stepscope.record.run" in sys.modules  # `stepscope run` decides by itself
    if is_worker or is_ours or Collection.running is not None:
        return
    run = Run(list(sys.argv), RecordOptions())
    path = target_path(output, "", run.rank)
    if run.rank.world_size == 1 and belongs_to_parent(f"{_VARIABLE}_OWNER"):
        path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
    check_target(path)
    switches = {name: bool(_number(name)) for name in ("native", "memory", "perf", "stalls")}
    options = ContextOptions(
        sample=_number("sample"),
        sample_real=_number("sample_real"),
        drivers=read_drivers(os.environ.get(f"{_VARIABLE}_DRIVERS")),
        **switches,
    )
    collection = Collection(run, path, options, keep_empty=False)
    collection.start()
    atexit.register(collection.close, Ending(), "run")


def _number(name: str) -> int:
    return int(os.environ.get(f"{_VARIABLE}_{name.upper()}", "") or "0")
