"""When JAX compiles, for how long, and why again: a context below the call that caused it.

JAX reports each part of a compilation when it has ended (`jax.monitoring`). The reason follows from
the arguments: those of this call, compared with those that the function was compiled for before.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from jax import monitoring

from stepscope.capture.contexts.jax.jit_functions import FunctionSite, site_of
from stepscope.capture.contexts.jax.jit_signatures import KnownSignatures, signature_of
from stepscope.capture.contexts.jax.nested_durations import NestedDurations
from stepscope.capture.jax.compilation_counter import unregister_duration_listener

_PARTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "load from the compilation cache",
}
_MOST_REASONS = 32
_LONGEST = 160
_ANOTHER = "another reason"


class JitCompilations:
    """Follows the compilations of all threads.

    Args:
        extension: the collector.
    """

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._is_closed = False
        self._open = _Open()
        self._known: weakref.WeakKeyDictionary[Any, KnownSignatures] = weakref.WeakKeyDictionary()
        self._compiled: set[FunctionSite] = set()
        self._reasons: set[str] = set()
        self._listener = self._part_ended  # one object, which can be found again

    def follow(self) -> None:
        """Begin."""
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
            when = ", ahead of time" if getattr(self._extension, "sees_calls", True) else ""
            whole = f"compilation of {name}{when}"
            self._extension.spend(whole, "", 0, {part: own * 1e9}, False)

    def _why_again(
        self, function: Any, site: FunctionSite, arguments: Any, keywords: dict[str, Any]
    ) -> str:
        """Why it was compiled again, empty where it is the first time."""
        known = self._known.setdefault(function, KnownSignatures())
        try:
            why = known.why_again(signature_of(function, arguments, keywords))
        except Exception:  # arguments of any kind; the program must not notice
            why = ""
        if not why and site.file and site in self._compiled:  # a primitive has many functions
            why = "the function was created again"
        self._compiled.add(site)
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
        why = why if why in self._reasons else _ANOTHER
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
