"""Reports what a JAX program does to the collector: calls, compilations, waits, transfers.

JAX reports each part of a compilation when it has ended (`jax.monitoring`). The reason follows from
the arguments: those of this call, compared with those that the function was compiled for before.
"""

import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import monitoring, tree_util

from stepscope.record.jax.compilation_counter import FunctionSite, site_of, unregister_duration_listener
from stepscope.record.jax.program_ranges import watch_waits
from stepscope.record.patch import ignoring, undo
from stepscope.record.run_shares.activity_log import NestedDurations
from stepscope.record.unreplaced import time


class JaxAdapter:
    """Reports calls of compiled functions, compilations, waits and transfers."""

    def __init__(self, extension: Any, windows: bool = False) -> None:
        self._extension = extension
        self._compilations = JitCompilations(extension)
        self._restore: list[Callable[[], None]] = []
        self._wants_windows = windows
        self._windows: Any = None

    def attach(self) -> None:
        self._compilations.follow()
        self._restore, missing = watch_waits(self._extension.begin_whole, self._extension.end)
        problem = self._watch_calls()
        self._note("calls of compiled functions are not recorded", problem)
        if self._wants_windows and not problem:
            self._note("compiled operations are not recorded", self._open_windows())
        self._note("reads of arrays as buffers are not recorded", self._watch_buffers())
        for what in missing:
            self._note(f"{what} is not recorded", "this version has no such function")

    def detach(self) -> None:
        if self._windows:
            self._windows.detach()
        self._extension.leave_jax()
        self._compilations.close()
        undo(self._restore)

    def name_contexts(self) -> None:
        """Contexts have their names from the start."""

    def _note(self, what: str, problem: str) -> None:
        if problem:
            self._extension.note(f"{what}: JAX {jax.__version__}: {problem}")

    def _watch_calls(self) -> str:
        kind = type(jax.jit(lambda x: x))
        if kind.__module__.partition(".")[0] != "jaxlib":
            return f"jax.jit makes a {kind.__module__}.{kind.__name__}"
        describe = partial(describe_function, self._extension.forget_call)
        return str(self._extension.watch_calls(kind, describe, self._compilations.call_returned))

    def _open_windows(self) -> str:
        try:
            from stepscope.record.contexts.jax_windows import ProfilerWindows

            self._windows = ProfilerWindows(self._extension)
        except (ImportError, AttributeError) as error:
            return str(error)
        self._windows.attach()
        return ""

    def _watch_buffers(self) -> str:
        try:
            from jax._src.array import ArrayImpl
        except ImportError as error:
            return str(error)
        return str(self._extension.watch_buffers(ArrayImpl, "wait: np.asarray(x)"))


_PARTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "load from the compilation cache",
}
_MOST_REASONS = 32  # of a program: each is a context of its own
_LONGEST = 160  # characters of a reason
_MOST_KEPT = 8  # signatures of a function
_SCALARS = (bool, int, float, complex)
# By importance: what makes JAX compile again, in words.
_CHANGES = (
    ("shape", "new shape of"),
    ("dtype", "new type of"),
    ("weak", "new weak type of"),
    ("place", "new sharding of"),
    ("value", "new static argument"),
)


class JitCompilations:
    """Follows the compilations of all threads."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._is_closed = False
        self._open = _Open()
        self._known: weakref.WeakKeyDictionary[Any, deque[Signature]] = weakref.WeakKeyDictionary()
        self._compiled: set[FunctionSite] = set()
        self._reasons: set[str] = set()
        self._listener = self._part_ended  # one object, which can be found again

    def follow(self) -> None:
        monitoring.register_event_duration_secs_listener(self._listener)

    def close(self) -> None:
        """End; where JAX cannot forget a listener, it does nothing."""
        self._is_closed = True
        unregister_duration_listener(self._listener)

    def call_returned(self, function: Any, arguments: Any, keywords: Any) -> None:
        """A call during which something was compiled is about to end, in any thread."""
        parts = self._open.take()
        if not parts:
            return
        site = site_of(function)
        if "trace" in parts and len(parts) == 1:
            self._count(f"tracing of {site.name}", site, parts)
            return
        why = self._why_again(function, site, arguments, keywords or {})
        self._count(f"compilation of {site.name}{why}", site, parts)

    def _part_ended(self, event: str, duration: float, **about: Any) -> None:
        part = _PARTS.get(event)
        if part is None or self._is_closed:
            return
        own = self._open.durations.own(time.perf_counter(), duration)
        if self._extension.compiled():
            self._open.add(part, own)
        else:  # ahead of time, outside any call
            name = str(about.get("fun_name") or "a function").removeprefix("jit(").removesuffix(")")
            self._extension.spend(f"compilation of {name}, ahead of time", "", 0, {part: own * 1e9}, False)

    def _why_again(self, function: Any, site: FunctionSite, arguments: Any, keywords: dict[str, Any]) -> str:
        signatures = self._known.setdefault(function, deque(maxlen=_MOST_KEPT))
        why = ""
        with ignoring(Exception):  # arguments of any kind; the program must not notice
            why = why_again(signatures, signature_of(function, arguments, keywords))
        if not why and site.file and site in self._compiled:  # a primitive has many functions
            why = "the function was created again"
        self._compiled.add(site)
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else "another reason"
        return f", again: {why[:_LONGEST]}" if why else ""

    def _count(self, name: str, site: FunctionSite, parts: dict[str, float]) -> None:
        spent = {part: seconds * 1e9 for part, seconds in parts.items()}
        self._extension.spend(name, site.file, site.line, spent, True)


class _Open(threading.local):
    """What the running call of this thread has compiled so far."""

    def __init__(self) -> None:
        self.durations = NestedDurations()
        self._parts: dict[str, float] = {}

    def add(self, part: str, seconds: float) -> None:
        self._parts[part] = self._parts.get(part, 0.0) + seconds

    def take(self) -> dict[str, float]:
        parts, self._parts = self._parts, {}
        self.durations = NestedDurations()
        return parts


class Leaf(NamedTuple):
    """An argument, or a part of one."""

    shape: tuple[int, ...] | None  # None for what is no array
    dtype: str  # that of the array, or the type of the value
    weak: bool  # whether the type yields to that of other operands
    place: str  # the devices that it is committed to
    value: object  # of a number, or a hash of what may be a static argument; None for arrays


Signature = dict[str, Leaf]


def why_again(known: deque[Signature], now: Signature) -> str:
    """Why `now` is compiled although others were, the `known` ones; empty for the first. It is kept."""
    nearest = min(reversed(known), key=lambda signature: _distance(signature, now), default=None)
    known.append(now)
    return "" if nearest is None else change_between(nearest, now)


def change_between(before: Signature, now: Signature) -> str:
    """What changed between two signatures: `new shape of batch['x'] and 2 more`."""
    if before.keys() != now.keys():
        differing = [path for path in now if path not in before] or list(before.keys() - now.keys())
        parameter = differing[0].partition("[")[0].partition(".")[0]
        return f"new structure of {parameter}"
    for field, words in _CHANGES:
        changed = [p for p in now if getattr(before[p], field) != getattr(now[p], field)]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            return f"{words} {changed[0]}{more}"
    return "same arguments"


def signature_of(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Signature:
    """The arguments of a call by their paths; a donated array still has its shape."""
    try:
        bound = inspect.signature(function).bind(*arguments, **keywords).arguments
    except (TypeError, ValueError):
        bound = {"args": arguments, **keywords}
    leaves = tree_util.tree_flatten_with_path(dict(bound), is_leaf=lambda leaf: leaf is None)[0]
    return {f"{path[0].key}{tree_util.keystr(path[1:])}": _leaf(value) for path, value in leaves}


def _leaf(value: Any) -> Leaf:
    if isinstance(value, _SCALARS):
        return Leaf((), str(jax.dtypes.result_type(value)), True, "", repr(value))
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return Leaf(None, type(value).__qualname__, False, "", _hash(value))
    place = str(value.sharding) if getattr(value, "committed", False) else ""
    return Leaf(tuple(shape), str(dtype), bool(getattr(value, "weak_type", False)), place, None)


def _hash(value: Any) -> int:
    """Static arguments must be hashable; JAX compares them in the same way."""
    with ignoring(TypeError):
        return hash(value)
    return id(value)


def _distance(before: Signature, now: Signature) -> int:
    """In how many arguments two signatures differ; a value counts least."""
    differing = len(before.keys() ^ now.keys())
    changed = [(before[p], now[p]) for p in now if p in before and before[p] != now[p]]
    return 2 * differing + sum(1 + (old[:4] != new[:4]) for old, new in changed)


# -- compiled functions


def describe_function(died: Callable[[int], object], function: Any) -> tuple[str, str, int]:
    """Name, file and line of a compiled function, as its contexts are named.

    It is not kept alive; `died` gets its address once it is gone.
    """
    weakref.finalize(function, died, id(function)).atexit = False
    site = site_of(function)
    return f"jit({site.name})", site.file, site.line
