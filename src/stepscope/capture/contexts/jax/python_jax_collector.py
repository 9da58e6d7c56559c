"""Contexts of a JAX program in plain Python, where the native collector cannot be built."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from stepscope.capture import script_runner
from stepscope.capture.contexts.context_options import KINDS, ContextOptions
from stepscope.capture.contexts.flush_plan import DueFlush, FlushPlan
from stepscope.capture.contexts.python_nodes import ContextNodes, RunningStat, key_of_frame, rows_of

LACKS = [
    "calls of compiled functions, and why one is compiled again",
    "C++ frames, samples, memory, and device work",
]
_NATIVE_ONLY = "only the native collector sees them"
_HIDDEN = ("/stepscope/capture/", "/jax/_src/", "/jaxlib/")
_THREAD, _OPERATOR, _ANNOTATION = map(KINDS.index, ("thread", "operator", "annotation"))


class PythonJaxCollector:
    """Collects waits, transfers and compilations of a JAX program.

    Args:
        options: what to collect.
        reason: why the native collector is not here.
    """

    kind = "python"
    sees_calls = False

    def __init__(self, options: ContextOptions, reason: str) -> None:
        self._options = options
        self._notes = [f"collected in Python: {reason}"]
        self._nodes = ContextNodes(options.limit)
        self._thread_cpu: dict[int, RunningStat] = {}
        self._running = threading.local()
        self._adapters: list[Any] = []
        self._started_ns = time.time_ns()
        self._flush = DueFlush(self.content)

    def start(self) -> None:
        """Nothing is collected before JAX is followed."""

    def follow_jax(self) -> None:
        """Collect what JAX does from now on; the program has imported it."""
        from stepscope.capture.contexts.jax.jax_adapter import JaxAdapter

        self._adapters.append(JaxAdapter(self))
        self._adapters[-1].attach()

    def stop(self) -> None:
        """Stop collecting."""
        for adapter in self._adapters:
            adapter.detach()

    def members(self) -> dict[str, bytes]:
        """No further members of the capture."""
        return {}

    def flush_regularly(self, plan: FlushPlan) -> None:
        """Keep the file up to date: the first wait after a write is due makes it."""
        self._flush.begin(plan)

    def stop_flushing(self) -> None:
        """Nothing is written any more."""
        self._flush.end()

    def note(self, sentence: str) -> None:
        """Add a sentence for readers of the file."""
        self._notes.append(sentence)

    def release(self) -> None:
        """Everything goes with this object."""

    def content(self, complete: bool) -> bytes:
        """contexts.json as it stands."""
        stats = dict(self._nodes.stats)
        parts = {"python", "operator"} if self._options.python else {"operator"}
        cpu = rows_of(dict(self._thread_cpu), "exclusive", "CPU time of the calling thread")
        return json.dumps(
            {
                "format": "stepscope contexts", "version": 1,
                "collector": "python", "lacks": LACKS, "started_unix_ns": self._started_ns,
                "elapsed_ns": time.time_ns() - self._started_ns, "complete": complete,
                "sources": sorted(parts, reverse=True),
                **self._nodes.columns({}),
                "metrics": {"cpu_ns": rows_of(stats), "thread_cpu_ns": cpu},
                "totals": {"operators": sum(stat.count for stat in stats.values()),
                           "backward": 0, "backward_linked": 0},
                "dropped": {"contexts": self._nodes.dropped},
                "notes": self._notes,
            }, separators=(",", ":"),
        ).encode()  # fmt: skip

    # -- what the adapter calls, as it calls the extension

    def begin_whole(self, name: str) -> tuple[str, int, int] | None:
        """A wait or transfer begins; None within another one, which counts it."""
        depth = getattr(self._running, "depth", 0)
        self._running.depth = depth + 1
        return None if depth else (name, time.perf_counter_ns(), time.thread_time_ns())

    def end(self, token: tuple[str, int, int] | None) -> None:
        """It ends."""
        ended, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._running.depth -= 1
        if token:
            name, begun, cpu_begun = token
            node = self._nodes.child(self._caller(), (_OPERATOR, name, "", 0, ""))
            self._nodes.stats.setdefault(node, RunningStat()).add(ended - begun)
            self._thread_cpu.setdefault(node, RunningStat()).add(cpu_ns - cpu_begun)
            self._flush.if_due()

    def spend(
        self, name: str, file: str, line: int, parts: dict[str, float], is_one_call: bool
    ) -> None:
        """An annotation has ended, with the nanoseconds of its parts."""
        whole = self._nodes.child(self._caller(), (_ANNOTATION, name, file, line, ""))
        for part, ns in parts.items():
            node = self._nodes.child(whole, (_ANNOTATION, part, "", 0, ""))
            self._nodes.stats.setdefault(node, RunningStat()).add(int(ns))

    def compiled(self) -> bool:
        """Whether a compilation is inside a watched call: none is watched."""
        return False

    def watch_calls(self, kind: type, resolve: Any, compiled: Any) -> str:
        """Why calls are not recorded."""
        return _NATIVE_ONLY

    def watch_buffers(self, kind: type, name: str) -> str:
        """Why reads are not recorded."""
        return _NATIVE_ONLY

    def leave_jax(self) -> None:
        """Nothing to undo."""

    def forget_call(self, address: int) -> None:
        """Nothing is remembered."""

    def _caller(self) -> int:
        """The node of the innermost Python frame of the program, or of its thread."""
        is_main = threading.current_thread() is threading.main_thread()
        node = self._nodes.child(0, (_THREAD, "main" if is_main else "python", "", 0, ""))
        frames = list(_frames(sys._getframe(2))) if self._options.python else []
        for frame in reversed(frames):
            node = self._nodes.child(node, key_of_frame(frame))
        return node


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The program's frames from inside out."""
    while frame is not None and frame.f_code.co_filename != script_runner.__file__:
        file = frame.f_code.co_filename.replace("\\", "/")
        if not any(part in file for part in _HIDDEN):
            yield frame
        frame = frame.f_back
