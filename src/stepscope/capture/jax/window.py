"""One stretch of consecutive training steps under JAX's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax._src import profiler as jax_profiler
from jax._src.lib import _profiler

from stepscope.capture.jax.loading import LoadingRanges
from stepscope.capture.jax.run_ahead import RunAhead
from stepscope.capture.options import Options
from stepscope.errors import CaptureError

MARK = "stepscope.step"
MEMBER = "trace.xplane.pb"
RUN_IN = 2
TAKEN = (
    "expected to start JAX's profiler, found that the script runs its own; open what that one "
    "writes (stepscope report FOLDER)"
)


class Window:
    """Records steps from `first` on; in the call that begins one stands a mark `stepscope.step`.

    The mark bears the number of the step. Those before `first` run in: the one in which recording
    begins, and the one whose work the next one finds under way. The session is one of XLA's own;
    `jax.profiler.start_trace` is left to the program, which gets it whenever it asks.
    """

    def __init__(self, options: Options, first: int, anchor: object, run_in: int = RUN_IN) -> None:
        self.anchor = anchor
        self.complete: list[int] = []
        self.gave_way = False
        self._first, self._next = first, first - run_in
        self._space = b""
        if jax_profiler._profile_state.profile_session is not None:
            raise CaptureError(TAKEN)
        self._ahead = RunAhead()
        self._loading = LoadingRanges()
        self._session: Any = _profiler.ProfilerSession(_options(options))
        self._original = _profiler.ProfilerSession
        _profiler.ProfilerSession = self._for_the_program
        self._mark()

    def end_step(self, outputs: Any) -> None:
        """The training step that ran was over when the call began that has just returned."""
        self._ahead.step_ended(outputs)
        if self._next >= self._first:
            self.complete.append(self._next)
        self._next += 1
        self._mark()

    def close(self, *, drain: bool) -> None:
        """Stop recording; with `drain` only once the steps' work is done."""
        if self._session is None:
            return
        if drain:
            self._ahead.drain()
        self._loading.close()
        _profiler.ProfilerSession = self._original
        session, self._session = self._session, None
        self._space = session.stop()

    def export(self, path: Path) -> None:
        """Write the profile to `path`."""
        path.write_bytes(self._space)

    def _mark(self) -> None:
        with jax.profiler.TraceAnnotation(MARK, step_num=self._next):
            pass

    def _for_the_program(self, *options: Any) -> Any:
        """What the program gets that starts a profiler of its own: there can be but one."""
        self.gave_way = True
        self.close(drain=False)
        return self._original(*options)


def _options(options: Options) -> Any:
    result = jax.profiler.ProfileOptions()
    result.python_tracer_level = int(options.stack)
    return result
