"""Record from Python, by a change to the script instead of its command line."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.base.watch_format import is_watched_run
from stepscope.record.capture_file import check_target
from stepscope.record.manifest import Run
from stepscope.record.memory.out_of_memory import find_out_of_memory
from stepscope.record.options import Rank, RecordOptions, belongs_to_parent, script_name, target_path
from stepscope.record.patch import AfterImport, ignoring
from stepscope.record.process_exit import say
from stepscope.record.session import Ending, Session


class profile:
    """Record a few of the steps that run in a `with` block.

    Steps are detected as `stepscope run` detects them: from the optimizers, in JAX from calls of
    the training function, and without either from the loop around the model.

    Args:
        model: the `nn.Module` that trains; without it, models are detected from their calls.
            None for JAX.
        path: the file to write; by default named after the script.
        overwrite: replace an earlier capture instead of keeping it as `NAME.1.stepscope`.
        warmup: training steps to skip first; with 0, recording begins with the block.
        steps: training steps to record.
        memory: also record every allocation.
        shapes: also record the shapes of operator inputs.
        stack: also record Python stacks (costly).

    Raises:
        CaptureError: the file cannot be written, or exists and is not a capture.

    Example:
        with stepscope.profile(model, path="train.stepscope"):
            train(model, batches)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        path: str | Path | None = None,
        overwrite: bool = False,
        warmup: int = 5,
        steps: int = 3,
        memory: bool = False,
        shapes: bool = True,
        stack: bool = False,
    ) -> None:
        self._model = model
        run = Run(list(sys.argv), RecordOptions(warmup, steps, memory, shapes, stack))
        self._session = Session(run, target_path(path, script_name(), run.rank), overwrite)

    @property
    def path(self) -> Path:
        """The capture file."""
        return self._session.path

    @property
    def is_over(self) -> bool:
        """Whether no more steps will be recorded."""
        return self._session.is_over

    def __enter__(self) -> "profile":
        check_target(self.path)
        if "jax" in sys.modules and (jax_recorder := self._session.attach_jax()):
            jax_recorder.start()
        if "torch" in sys.modules or "jax" not in sys.modules:
            recorder = self._session.attach()
            if self._model is not None:
                _add_root(recorder.registry, self._model, sys._getframe(1))
            recorder.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._session.finish(Ending.of_block(error))
        if line := self._session.failure or self._session.file.note:
            say(line)


class watch:
    """Watch all training steps that run in a `with` block, as `stepscope watch` does.

    Args:
        path: the file to write; by default named after the script.

    Raises:
        CaptureError: the file exists and is not of a watched run.

    Example:
        with stepscope.watch("train.watch"):
            train(model, batches)
    """

    def __init__(self, path: str | Path | None = None) -> None:
        from stepscope.record.watch.watch_session import WatchSession

        self._session = session = WatchSession.of_program(script_name(), list(sys.argv), path)
        self._imports = [AfterImport("torch", session.attach), AfterImport("jax", session.attach_jax)]

    @property
    def path(self) -> Path:
        """The file, which can be read while the block runs."""
        return self._session.path

    @property
    def is_empty(self) -> bool:
        """Whether no step has ended, in this process."""
        return not (self._session.is_forked or self._session.steps)

    def metrics(self) -> dict[str, float]:
        """Mean times of the steps that have ended since the last call, for a logger of metrics.

        Returns:
            `stepscope/step_ms`, `stepscope/input_ms` and so on (ms), and `stepscope/steps`; empty
            if no step has ended.

        Example:
            with stepscope.watch() as watched:
                for batch in batches:
                    train(batch)
                    wandb.log({"loss": loss, **watched.metrics()})
        """
        return {f"stepscope/{name}": value for name, value in self._session.metrics().items()}

    def __enter__(self) -> "watch":
        check_target(self.path, is_watched_run)
        for watched in self._imports:
            watched.install()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for watched in self._imports:
            watched.remove()
        if not self._session.is_forked and error and (failed := find_out_of_memory(error)):
            say(self._session.run_out_of_memory(failed))
        self._session.finish(Ending.of_block(error))
        if self._session.failure:
            say(f"the watch failed: {self._session.failure}")


def watch_from_environment(output: str) -> None:
    """Watch this process to its end: STEPSCOPE_WATCH=FILE, for a job whose code and command cannot change.

    PyTorch calls `stepscope.autoload` when it is imported; whatever fails here, that import goes on.
    """
    # The children of each rank, and of a launcher, leave its file alone. Workers of Ray are no children of
    # the program, though their environment may be its own: each has a file.
    rank = Rank.from_environment()
    owner = f"STEPSCOPE_WATCH_OWNER_{rank.rank if rank.world_size > 1 else ''}"
    if _is_worker_of_ray():
        os.environ[owner] = str(os.getpid())
        if rank.world_size == 1:
            path = Path(output)
            output = str(path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}"))
    if belongs_to_parent(owner) or "stepscope.record.run" in sys.modules:
        return
    with ignoring(Exception, then=lambda error: say(f"nothing is watched: {error}")):
        watched = watch(output)
        watched.__enter__()
        atexit.register(_end_watch, watched)


def _is_worker_of_ray() -> bool:
    with ignoring(OSError):  # a system without /proc
        return Path("/proc/self/cmdline").read_bytes().startswith(b"ray::")  # its title
    return False


def _end_watch(watched: watch) -> None:
    watched.__exit__(None, getattr(sys, "last_value", None), None)
    if watched.is_empty:  # of a launcher
        watched.path.unlink(missing_ok=True)


def trace_handler(
    model: Any = None, path: str | Path | None = None, *, overwrite: bool = False
) -> Callable[[Any], None]:
    """Write a capture from your own torch.profiler.

    Create the handler before the steps to record: it makes module calls ranges in the trace.

    Args:
        model: the `nn.Module` that trains; without it, models are detected from their calls.
        path: the file to write; by default named after the script. A schedule that repeats
            writes `NAME.stepscope`, `NAME-2.stepscope`, and so on.
        overwrite: replace an earlier capture instead of keeping it as `NAME.1.stepscope`.

    Returns:
        A function for `on_trace_ready`.

    Raises:
        CaptureError: the file cannot be written, or exists and is not a capture.

    Example:
        schedule = torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)
        handler = stepscope.trace_handler(model)
        with torch.profiler.profile(schedule=schedule, on_trace_ready=handler) as profiler:
            for batch in batches:
                train(batch)
                profiler.step()
    """
    target = target_path(path, script_name(), Rank.from_environment())
    check_target(target)
    from stepscope.record.profiler_handler import TraceHandler

    handler = TraceHandler(target, overwrite)
    if model is not None:
        _add_root(handler.registry, model, sys._getframe(1))
    return handler


def _add_root(registry: Any, model: Any, caller: FrameType) -> None:
    from stepscope.record.call_sites import name_in

    registry.add_root(model, name_in(caller, model))
