"""A collector in plain Python for systems where the native one cannot be built.

It sees PyTorch's operators through a dispatch mode, and JAX's waits, transfers and compilations
through the same adapter as the native one.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from stepscope.record import script_runner
from stepscope.record.capture_file import Member
from stepscope.record.contexts.context_options import KINDS, NO_MODULES, SOURCES, ContextOptions, FlushPlan
from stepscope.record.unreplaced import time

_LACKS_OF_TORCH = [
    "operators of threads other than the one that began to collect",
    "operators that only call others, and the time spent in them",
    "the link from backward operators to their forward call",
    "annotations, compilations, C++ frames, samples, memory, and device work with its stalls",
]
_LACKS_OF_JAX = [
    "calls of compiled functions, and why one is compiled again",
    "C++ frames, samples, memory, and device work",
]
# Frames between the program and this file.
_HIDDEN = ("/stepscope/record/", "/jax/_src/", "/jaxlib/", "torch/utils/_python_dispatch")
_COLLECTED = SOURCES["python"] | SOURCES["module"] | SOURCES["operator"]
_THREAD, _PYTHON, _MODULE, _OPERATOR, _ANNOTATION = map(
    KINDS.index, ("thread", "python", "module", "operator", "annotation")
)
_Key = tuple[int, str, str, int, str]  # kind, name, file, line, class
_Token = tuple[str, int, int]  # name, begin on the clock and in the thread's CPU time


class PythonCollector:
    """Collects in the program's own threads: of PyTorch too, where the program has imported it."""

    sees_calls = False  # of compiled functions of JAX, and reads of its arrays as buffers

    def __init__(self, options: ContextOptions, reason: str, torch: Any) -> None:
        self._options = options
        self._notes = [f"collected in Python: {reason}"]
        self._lacks = list(_LACKS_OF_TORCH if torch else _LACKS_OF_JAX)
        self._nodes = _Nodes(options.limit)
        self._cpu, self._thread_cpu = _Metric(), _Metric()
        self._modules = _ModuleNumbers() if torch else None
        self._mode: Any = _dispatch_mode(self._operator_ended) if torch else None
        self._jax: Any = None
        self._running = threading.local()
        self._started_ns = time.time_ns()
        self._plan: FlushPlan | None = None
        self._wait_s = self._due_s = 0.0

    def start(self) -> None:
        """Collect every PyTorch operator of this thread from now on."""
        if self._mode:
            self._mode.__enter__()

    def follow_jax(self) -> None:
        from stepscope.record.contexts.jax_adapter import JaxAdapter

        self._jax = JaxAdapter(self)
        self._jax.attach()
        self._lacks += [lack for lack in _LACKS_OF_JAX[:1] if lack not in self._lacks]

    def stop(self) -> None:
        if self._mode:
            self._mode.__exit__(None, None, None)
        if self._jax:
            self._jax.detach()

    def flush_regularly(self, plan: FlushPlan) -> None:
        """Keep the file up to date: the first operator after a write is due makes it."""
        self._plan, self._wait_s = plan, plan.first_s
        self._due_s = time.monotonic() + self._wait_s

    def stop_flushing(self) -> None:
        self._plan = None

    def note(self, sentence: str) -> None:
        self._notes.append(sentence)

    def content(self, complete: bool) -> bytes:
        if self._modules:
            self._modules.paths.name_all()
        cpu, sources = self._cpu.copy(), self._options.sources & _COLLECTED
        metrics = {"cpu_ns": _described(cpu, "inclusive", "time on the CPU thread")}
        if self._jax:
            of_thread = self._thread_cpu.copy()
            metrics["thread_cpu_ns"] = _described(of_thread, "exclusive", "CPU time of the calling thread")
        if not self._modules:
            sources &= ~SOURCES["module"]
        return json.dumps(
            {
                "format": "stepscope contexts",
                "version": 1,
                "collector": "python",
                "lacks": self._lacks,
                "started_unix_ns": self._started_ns,
                "elapsed_ns": time.time_ns() - self._started_ns,
                "complete": complete,
                "sources": [name for name, bit in SOURCES.items() if bit & sources],
                **self._nodes.columns(self._modules.names if self._modules else {}),
                "metrics": metrics,
                "totals": {
                    "operators": sum(count for count, *_ in cpu.values()),
                    "cpu_ns": sum(total for _, total, *_ in cpu.values()),
                    "backward": 0,
                    "backward_linked": 0,
                },
                "dropped": {
                    "contexts": self._nodes.dropped,
                    "backward_links": 0,
                    "samples": 0,
                    "device_records": 0,
                },
                "notes": self._notes,
            },
            separators=(",", ":"),
        ).encode()

    def members(self) -> dict[str, Member]:
        """Further members of the capture: none."""
        return {}

    def release(self) -> None:
        """Python frees its memory."""

    # -- what the adapter calls, as it calls the extension

    def begin_whole(self, name: str) -> _Token | None:
        """A wait or transfer begins; None within another one, which counts it."""
        depth = getattr(self._running, "depth", 0)
        self._running.depth = depth + 1
        return None if depth else (name, time.perf_counter_ns(), time.thread_time_ns())

    def end(self, token: _Token | None) -> None:
        ended, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._running.depth -= 1
        if token:
            name, begun, cpu_begun = token
            node = self._operator_ended(name, ended - begun)
            self._thread_cpu.add(node, cpu_ns - cpu_begun)

    def spend(self, name: str, file: str, line: int, parts: dict[str, float], is_one_call: bool) -> None:
        """An annotation has ended, with the nanoseconds of its parts."""
        whole = self._nodes.child(self._caller(), (_ANNOTATION, name, file, line, ""))
        for part, ns in parts.items():
            node = self._nodes.child(whole, (_ANNOTATION, part, "", 0, ""))
            self._cpu.add(node, int(ns))

    def compiled(self) -> bool:
        """Whether a compilation is inside a watched call: none is watched."""
        return False

    # -- the tree

    def _operator_ended(self, name: str, elapsed_ns: int) -> int:
        node = self._nodes.child(self._caller(), (_OPERATOR, name, "", 0, ""))
        self._cpu.add(node, elapsed_ns)
        if self._plan and time.monotonic() >= self._due_s:
            self._flush(self._plan)
        return node

    def _flush(self, plan: FlushPlan) -> None:
        with suppress(OSError):  # reported when the run has ended and it fails again
            plan.file.write(plan.manifest, NO_MODULES, {"contexts.json": self.content(False)})
        self._wait_s = min(2 * self._wait_s, plan.interval_s)
        self._due_s = time.monotonic() + self._wait_s

    def _caller(self) -> int:
        """The node of the innermost Python frame of the program, or of its thread."""
        is_main = threading.current_thread() is threading.main_thread()
        node = self._nodes.child(0, (_THREAD, "main" if is_main else "python", "", 0, ""))
        inside = -1
        for frame in reversed(list(_frames(sys._getframe(1)))):
            if self._modules and self._options.modules and self._modules.is_call(frame):
                key = self._modules.paths.resolve(frame.f_locals["self"], inside)
                if key is not None:
                    inside = key
                    site = self._modules.sites[key]
                    node = self._nodes.child(node, (_MODULE, str(key), *site))
            elif self._options.python and frame.f_code.co_name != "_call_impl":
                node = self._nodes.child(node, _key_of_frame(frame))
        return node


def _dispatch_mode(ended: Any) -> Any:
    """A mode of PyTorch that reports the name and the nanoseconds of each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode

    class Mode(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            begun = time.perf_counter_ns()
            result = func(*args, **(kwargs or {}))
            elapsed_ns = time.perf_counter_ns() - begun
            with suppress(Exception):  # training must go on whatever we stumble over
                ended(func._schema.name, elapsed_ns)
            return result

    return Mode()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and frame.f_code.co_filename != script_runner.__file__:
        file = frame.f_code.co_filename.replace("\\", "/")
        if not any(part in file for part in _HIDDEN):
            yield frame
        frame = frame.f_back


def _key_of_frame(frame: FrameType) -> _Key:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    return (_PYTHON, name, code.co_filename, frame.f_lineno or 0, "")


class _ModuleNumbers:
    """Numbers module calls, as the native collector does for `ModulePaths`."""

    def __init__(self) -> None:
        from stepscope.record.contexts.module_paths import CALL_CODE, ModulePaths

        self.names: dict[int, str] = {}
        self.sites: dict[int, tuple[str, int, str]] = {}
        self.paths = ModulePaths(self)
        self._call_code = CALL_CODE
        self._keys: dict[tuple[str, str, int, str], int] = {}

    def is_call(self, frame: FrameType) -> bool:
        return frame.f_code is self._call_code

    def module_key(self, name: str, file: str, line: int, cls: str) -> int:
        key = self._keys.setdefault((name, file, line, cls), len(self._keys))
        self.names.setdefault(key, name)
        self.sites[key] = (file, line, cls)
        return key

    def rename(self, key: int, name: str) -> None:
        self.names[key] = name

    def module_died(self) -> None:
        """Nothing is remembered by address here."""


_Statistics = tuple[int, int, int, int, float]
_STATISTICS = ("count", "sum", "min", "max", "squares")


class _Metric(dict[int, _Statistics]):
    """Statistics of the values of each node so far."""

    def add(self, node: int, value: int) -> None:
        count, total, least, most, squares = self.get(node, (0, 0, value, value, 0.0))
        least, most = min(least, value), max(most, value)
        self[node] = count + 1, total + value, least, most, squares + float(value) ** 2


class _Nodes:
    """The nodes of a tree of contexts, by parent and key; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._index: dict[tuple[int, _Key], int] = {}
        self._nodes: list[tuple[int, _Key]] = [(-1, (0, "", "", 0, ""))]

    def child(self, parent: int, key: _Key) -> int:
        """The node of a frame below another, made where it is new; the parent past the limit."""
        node = self._index.get((parent, key))
        if node is not None:
            return node
        if len(self._nodes) >= self._limit:
            self.dropped += 1
            return parent
        self._nodes.append((parent, key))
        self._index[parent, key] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def columns(self, module_names: dict[int, str]) -> dict[str, Any]:
        """The tables of nodes and strings of contexts.json."""
        strings: dict[str, int] = {"": 0}
        rows = []
        for parent, (kind, name, file, line, cls) in list(self._nodes):
            shown = module_names[int(name)] if kind == _MODULE else name
            texts = [strings.setdefault(text, len(strings)) for text in (shown, file, cls)]
            rows.append((parent, kind, 0, texts[0], texts[1], line, texts[2]))
        names = ("parent", "kind", "relation", "name", "file", "line", "class")
        nodes = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        return {"strings": list(strings), "kinds": KINDS, "nodes": nodes}


def _described(metric: dict[int, _Statistics], nesting: str, meaning: str) -> dict[str, Any]:
    """A metric of contexts.json, in nanoseconds."""
    nodes = sorted(metric)
    columns = {name: [metric[node][at] for node in nodes] for at, name in enumerate(_STATISTICS)}
    return {"unit": "ns", "nesting": nesting, "meaning": meaning, "node": nodes, **columns}
