"""Recording from Python, for those who would rather change their script than its command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from stepscope.capture.archive import check_target
from stepscope.capture.manifest import Run
from stepscope.capture.options import Options
from stepscope.capture.session import Ending, Session
from stepscope.capture.target import Rank, target_path


class profile:
    """Record a few of the steps that run in a `with` block.

    Steps are found from the optimizers, in JAX from calls of the training step, and where there is
    neither from the loop around the model, as `stepscope run` finds them.

    Args:
        model: the `nn.Module` that trains; without it, models are found from their calls.
            None for JAX.
        path: the file to write; by default named after the script.
        warmup: training steps to let pass first; with 0, recording begins with the block.
        steps: training steps to record.
        memory: also record every allocation.
        shapes: also record the shapes of operator inputs.
        stack: also record Python stacks (costly).

    Raises:
        CaptureError: the file cannot be written, or is something other than a capture.

    Example:
        with stepscope.profile(model, path="train.stepscope"):
            train(model, batches)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        path: str | Path | None = None,
        warmup: int = 5,
        steps: int = 3,
        memory: bool = False,
        shapes: bool = True,
        stack: bool = False,
    ) -> None:
        self._model = model
        run = Run(_command(), Options(warmup, steps, memory, shapes, stack))
        self._session = Session(run, target_path(path, _script_name(), run.rank))

    @property
    def path(self) -> Path:
        """The file that the capture goes to."""
        return self._session.path

    def __enter__(self) -> profile:
        check_target(self.path)
        if "jax" in sys.modules and (watching := self._session.attach_jax()):
            watching.start()
        if "torch" in sys.modules or "jax" not in sys.modules:
            recorder = self._session.attach()
            if self._model is not None:
                _plant(recorder.forest, self._model, sys._getframe(1))
            recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._session.finish(_ending(error))
        if self._session.failure:
            print(f"stepscope: {self._session.failure}", file=sys.stderr)


def trace_handler(model: Any = None, path: str | Path | None = None) -> Callable[[Any], None]:
    """Write a capture of what your own torch.profiler recorded.

    Make the handler before the steps to record: from then on module calls are ranges in the trace.

    Args:
        model: the `nn.Module` that trains; without it, models are found from their calls.
        path: the file to write; by default named after the script. A schedule that repeats
            writes `NAME.stepscope`, `NAME-2.stepscope`, and so on.

    Returns:
        What torch.profiler calls when a trace is ready.

    Raises:
        CaptureError: the file cannot be written, or is something other than a capture.

    Example:
        schedule = torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)
        handler = stepscope.trace_handler(model)
        with torch.profiler.profile(schedule=schedule, on_trace_ready=handler) as profiler:
            for batch in batches:
                train(batch)
                profiler.step()
    """
    target = target_path(path, _script_name(), Rank.from_environment())
    check_target(target)
    from stepscope.capture.handler import TraceHandler

    handler = TraceHandler(target)
    if model is not None:
        _plant(handler.forest, model, sys._getframe(1))
    return handler


def _plant(forest: Any, model: Any, caller: FrameType) -> None:
    from stepscope.capture.callsites import name_in

    forest.plant(model, name_in(caller, model))


def _ending(error: BaseException | None) -> Ending:
    if error is None:
        return Ending()
    if isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "was interrupted")
    return Ending("raised", f"raised {type(error).__name__}")


def _command() -> list[str]:
    return list(sys.argv)


def _script_name() -> str:
    """As `stepscope run` would call it; a notebook or prompt has no script."""
    return Path(sys.argv[0] if sys.argv else "").stem or "capture"
