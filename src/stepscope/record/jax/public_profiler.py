"""Records a JAX program with public functions only, where the recorder's hook is missing.

Without the hook nothing reports the calls of compiled functions. So the profile goes from the first
compilation until a few seconds pass without another one, and its reader finds the steps by the
calls in it.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.profiler

from stepscope.record.jax import MEMBER, OTHER_PROFILER
from stepscope.record.options import RecordOptions
from stepscope.record.patch import replace, undo
from stepscope.record.recording import Recording, call_in_forked_children
from stepscope.record.unreplaced import time

_QUIET_S, _LONGEST_S, _POLL_S = 3.0, 60.0, 0.1  # since the last compilation, in all, between looks
_PUBLIC = ("start_trace", "trace", "start_server")


@dataclass
class ProfiledTime:
    """What the public profiler wrote of some seconds of the run; no step is marked in it."""

    folder: Path
    seconds: float = 0.0
    complete: list[int] = field(default_factory=list)

    def export(self, path: Path) -> None:
        profiles = sorted(self.folder.rglob("*.xplane.pb"))
        if not profiles:
            raise RuntimeError("JAX's profiler wrote no profile")
        shutil.move(profiles[-1], path)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(kw_only=True)
class UnmarkedRecording(Recording[ProfiledTime]):
    """Some seconds of a JAX program."""

    member: str = MEMBER

    @property
    def span(self) -> str:
        return f"{self.window.seconds:.1f} s"


class NoDetector:
    """Nothing detects steps while the program runs."""

    boundary_name: str | None = None
    step_is: str | None = None
    trains = True
    steps = 0


class PublicProfilerRecorder:
    """Records the first seconds of a JAX program after it compiles; `why` the hook cannot be used."""

    framework = "jax"
    why_no_steps = "nothing was compiled under jax.jit in this process"

    def __init__(self, options: RecordOptions, on_complete: Callable[[Any], None], why: str) -> None:
        self.detector = NoDetector()
        self.problem: str | None = None
        self._options, self._on_complete, self._why = options, on_complete, why
        self._recording: UnmarkedRecording | None = None
        self._began = self._last = 0.0
        self._is_watching = True
        self._lock = threading.RLock()
        self._start_trace, self._stop_trace = jax.profiler.start_trace, jax.profiler.stop_trace
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        self._restore = [
            replace(jax.profiler, name, self._giving_way(getattr(jax.profiler, name))) for name in _PUBLIC
        ]
        call_in_forked_children(self.detach)

    def start(self) -> None:
        if self._options.warmup == 0:
            self._begin()

    def detach(self) -> None:
        """Remove every hook; the listener of events stays, and does nothing."""
        self._is_watching = False
        undo(self._restore)

    def close(self) -> None:
        """Stop recording; what was recorded is complete."""
        self._end()
        self.detach()

    def best(self) -> UnmarkedRecording | None:
        return self._recording if self._recording and self._recording.window.seconds else None

    def _on_event(self, event: str, duration: float, **about: Any) -> None:
        self._last = time.monotonic()
        if self._is_watching and self._recording is None:
            self._begin()

    def _begin(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
        try:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = int(self._options.stack)
            self._start_trace(str(folder), profiler_options=options)
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            own = isinstance(error, RuntimeError)
            self.problem = OTHER_PROFILER if own else f"{type(error).__name__}: {error}"
            self.detach()
            return
        self._recording = UnmarkedRecording(window=ProfiledTime(folder))
        self._began = self._last = time.monotonic()
        threading.Thread(target=self._end_when_quiet, name="stepscope", daemon=True).start()

    def _end_when_quiet(self) -> None:
        while self._is_watching:
            now = time.monotonic()
            if now - self._last > _QUIET_S or now - self._began > _LONGEST_S:
                self.close()
            time.sleep(_POLL_S)

    def _end(self) -> None:
        with self._lock:
            recording, running = self._recording, self._is_watching
            self._is_watching = False
            if recording is None or not running:
                return
            recording.window.seconds = time.monotonic() - self._began
            self.problem = what_is_lost(self._why)
            try:
                self._stop_trace()
            except Exception as error:
                self._recording, self.problem = None, f"{type(error).__name__}: {error}"
                return
            self._on_complete(recording)

    def _giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The program starts a profiler of its own, and there can be only one."""

        def watched(*arguments: Any, **keywords: Any) -> Any:
            self.close()
            return original(*arguments, **keywords)

        return watched


def what_is_lost(why: str) -> str:
    return (
        f"{why}, so JAX's public profiler recorded the first seconds instead: steps are found by "
        "the calls in the profile, --warmup and --steps have no effect, and the loop may run ahead "
        "of its devices"
    )
