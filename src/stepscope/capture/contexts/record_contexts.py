"""Collect contexts from Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from stepscope.capture.capture_file import check_target
from stepscope.capture.contexts.collection import Collection
from stepscope.capture.contexts.context_options import ContextOptions
from stepscope.capture.manifest import Run
from stepscope.capture.options import RecordOptions, target_path


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

    Raises:
        CaptureError: the file cannot be written, or is something other than a capture.

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
    ) -> None:
        options = ContextOptions(
            python, modules, native, device, memory, sample, sample_real, perf, stalls
        )  # fmt: skip
        run = Run(list(sys.argv), RecordOptions())
        script = Path(sys.argv[0] if sys.argv else "").stem or "capture"
        self._collection = Collection(run, target_path(path, script, run.rank), options)
        self._is_inner = False

    @property
    def path(self) -> Path:
        """The file that the capture goes to."""
        return self._collection.path

    def __enter__(self) -> record_contexts:
        outer = Collection.running
        if outer is not None and not outer.is_forked:
            self._is_inner = True
            print(f"stepscope: contexts are collected already, for {outer.path}", file=sys.stderr)
            return self
        check_target(self.path)
        self._collection.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_inner:
            return
        self._collection.finish(*_outcome(error))
        if self._collection.failure:
            print(f"stepscope: {self._collection.failure}", file=sys.stderr)


def _outcome(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return "complete", "collected the contexts of the whole block"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "the block was interrupted; collected its contexts until then"
    return "raised", f"the block raised {type(error).__name__}; collected its contexts until then"
