"""A collector in plain Python for systems where the native one cannot be built."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.capture import script_runner
from stepscope.capture.contexts.context_options import KINDS, SOURCES, ContextOptions
from stepscope.capture.contexts.flush_plan import DueFlush, FlushPlan
from stepscope.capture.contexts.module_paths import CALL_CODE, ModulePaths
from stepscope.capture.contexts.native_collector import loaded_torch
from stepscope.capture.contexts.python_nodes import ContextNodes, RunningStat, key_of_frame, rows_of

LACKS = [
    "operators of threads other than the one that began to collect",
    "operators that only call others, and the time spent in them",
    "the link from backward operators to their forward call",
    "annotations, compilations, C++ frames, samples, memory, and device work with its stalls",
]

_DispatchMode: Any = TorchDispatchMode
_THREAD, _MODULE, _OPERATOR = map(KINDS.index, ("thread", "module", "operator"))


class PythonCollector:
    """Collects operators through a dispatch mode.

    Args:
        options: what to collect.
        reason: why the native collector is not here.
    """

    kind = "python"

    def __init__(self, options: ContextOptions, reason: str) -> None:
        self._options = options
        self._notes = [f"collected in Python: {reason}"]
        self._tree = ContextNodes(options.limit)
        self._keys = _ModuleKeys()
        self._paths = ModulePaths(self._keys)
        self._mode: Any = _Mode(self._add)
        self._started_ns = time.time_ns()
        self._flush = DueFlush(self.content)

    def start(self) -> None:
        """Collect every operator of this thread from now on."""
        if loaded_torch() is not None:
            self._mode.__enter__()

    def follow_jax(self) -> None:
        """Next to PyTorch, only the native collector sees JAX."""
        self.note("JAX is not recorded next to PyTorch: that needs the native collector")

    def stop(self) -> None:
        """Stop collecting."""
        if loaded_torch() is not None:
            self._mode.__exit__(None, None, None)

    def members(self) -> dict[str, bytes]:
        """No further members of the capture."""
        return {}

    def flush_regularly(self, plan: FlushPlan) -> None:
        """Keep the file up to date: the first operator after a write is due makes it."""
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
        self._paths.name_all()
        stats = dict(self._tree.stats)
        total = sum(stat.sum for stat in stats.values())
        return json.dumps(
            {
                "format": "stepscope contexts", "version": 1,
                "collector": "python", "lacks": LACKS,
                "started_unix_ns": self._started_ns,
                "elapsed_ns": time.time_ns() - self._started_ns, "complete": complete,
                "sources": [n for n, bit in SOURCES.items() if bit & self._options.sources & 7],
                **self._tree.columns(self._keys.names),
                "metrics": {"cpu_ns": rows_of(stats)},
                "totals": {"cpu_ns": total, "operators": sum(s.count for s in stats.values()),
                           "backward": 0, "backward_linked": 0},
                "dropped": {"contexts": self._tree.dropped, "backward_links": 0, "samples": 0,
                            "device_records": 0},
                "notes": self._notes,
            }
        ).encode()  # fmt: skip

    def _add(self, operator: str, elapsed_ns: int) -> None:
        self._count(operator, elapsed_ns)
        self._flush.if_due()

    def _count(self, operator: str, elapsed_ns: int) -> None:
        node = self._tree.child(0, (_THREAD, "main", "", 0, ""))
        inside = -1
        for frame in reversed(list(_stack(sys._getframe(3)))):
            if frame.f_code is CALL_CODE and self._options.modules:
                key = self._paths.resolve(frame.f_locals["self"], inside)
                if key is not None:
                    inside = key
                    node = self._tree.child(node, (_MODULE, str(key), *self._keys.sites[key]))
            elif self._options.python and frame.f_code.co_name != "_call_impl":
                node = self._tree.child(node, key_of_frame(frame))
        self._tree.stats.setdefault(
            self._tree.child(node, (_OPERATOR, operator, "", 0, "")), RunningStat()
        ).add(elapsed_ns)  # fmt: skip


class _ModuleKeys:
    """Numbers module calls, as the native collector does."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.sites: dict[int, tuple[str, int, str]] = {}
        self._keys: dict[tuple[str, str, int, str], int] = {}

    def module_key(self, name: str, file: str, line: int, cls: str) -> int:
        key = self._keys.setdefault((name, file, line, cls), len(self._keys))
        self.names.setdefault(key, name)
        self.sites[key] = (file, line, cls)
        return key

    def rename(self, key: int, name: str) -> None:
        self.names[key] = name

    def module_died(self) -> None:
        """Nothing is remembered by address here."""


class _Mode(_DispatchMode):  # type: ignore[misc]
    def __init__(self, add: Callable[[str, int], None]) -> None:
        super().__init__()
        self._add = add

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        begun = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        elapsed_ns = time.perf_counter_ns() - begun
        with suppress(Exception):  # training must go on whatever we stumble over
            self._add(func._schema.name, elapsed_ns)
        return result


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from inside out, without those between the program and this file."""
    while frame is not None and frame.f_code.co_filename != script_runner.__file__:
        if "torch/utils/_python_dispatch" not in frame.f_code.co_filename:
            yield frame
        frame = frame.f_back
