"""Private names of JAX that a version may lack: what is done without each of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import api
from jax._src import monitoring as private_monitoring
from jax._src import profiler as jax_profiler
from jax._src.interpreters import pxla
from jax._src.lib import _profiler

from stepscope.record.jax import compilation_counter, jit_calls
from stepscope.record.jax.compilation_counter import CompilationCounter
from stepscope.record.jax.jax_recorder import JaxRecorder
from stepscope.record.jax.program_ranges import profiler_sessions
from stepscope.record.manifest import Run
from stepscope.record.options import RecordOptions
from stepscope.record.session import Session


@pytest.mark.parametrize(
    ("holder", "name"),
    [(api, "_post_hook_state"), (jax_profiler, "_profile_state"), (_profiler, "ProfilerSession")],
)
def test_without_what_recording_needs_nothing_is_recorded(
    holder: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(Run([], RecordOptions()), tmp_path / "train.stepscope")
    with monkeypatch.context() as hidden:
        hidden.delattr(holder, name)
        assert session.attach_jax() is None


def test_with_all_of_it_steps_are_recorded(tmp_path: Path) -> None:
    recorder = Session(Run([], RecordOptions()), tmp_path / "train.stepscope").attach_jax()
    assert isinstance(recorder, JaxRecorder)
    recorder.detach()


@pytest.mark.parametrize(
    ("state", "sessions"),
    [({"profile_session": None}, [None]), ({"session": "of the program"}, ["of the program"]), ({}, [])],
    ids=["until 0.11", "since 0.12", "unknown"],
)
def test_the_profiler_of_the_program_is_found_in_each_version(
    state: dict[str, Any], sessions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_profiler, "_profile_state", SimpleNamespace(**state))
    assert profiler_sessions() == sessions


def test_programs_with_effects_are_not_seen_without_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with monkeypatch.context() as hidden:
        hidden.delattr(pxla, "ExecuteReplicated")
        watch = jit_calls.JitCallWatch(lambda call: seen.append(call.name))

    def double(x: Any) -> Any:
        return 2 * x

    doubled = jax.jit(double)
    for _ in range(3):
        doubled(jnp.ones(3))
    watch.remove()
    doubled(jnp.ones(3))
    assert seen == ["double", "double"]  # the first call compiles


def test_calls_that_compile_again_are_seen_and_their_arrays_are_the_program_s() -> None:
    """All but the first call of a function, under the name that its other calls have."""
    seen: list[tuple[str, bool]] = []
    arrays: list[Any] = [jnp.ones(1)]

    def is_known(call: jit_calls.JitCall) -> bool:
        return any(leaf is arrays[-1] for leaf in jax.tree.leaves(call.inputs))

    watch = jit_calls.JitCallWatch(lambda call: seen.append((call.name, is_known(call))))
    appended = jax.jit(lambda x, size: jnp.ones(size) + x[0], static_argnums=1)
    for size in (1, 2, 2, 3, 3):
        arrays.append(appended(arrays[-1], size))
    watch.remove()
    appended(arrays[-1], 4)
    assert seen == 4 * [("<lambda>", True)]


def test_a_watch_goes_on_while_and_after_another_one_is_open() -> None:
    seen: list[str] = []
    doubled = jax.jit(lambda x: 2 * x)
    doubled(jnp.ones(3))
    first = jit_calls.JitCallWatch(lambda call: seen.append("first"))
    second = jit_calls.JitCallWatch(lambda call: seen.append("second"))
    doubled(jnp.ones(3))
    second.remove()
    doubled(jnp.ones(3))
    first.remove()
    doubled(jnp.ones(3))
    assert seen == ["first", "second", "first"]


def test_a_listener_that_jax_cannot_forget_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compilation_counter._UNREGISTER:
        monkeypatch.delattr(private_monitoring, name, raising=False)
    counter = CompilationCounter()
    jax.jit(lambda x: x + 17.5)(jnp.ones(5)).block_until_ready()
    counted = counter.count
    counter.close()
    jax.jit(lambda x: x - 17.5)(jnp.ones(5)).block_until_ready()
    assert counted > 0
    assert counter.count == counted


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def double_of(values: Any) -> Any:
    return 2 * values


def test_a_function_that_is_compiled_for_each_shape_is_named() -> None:
    counter = CompilationCounter(Clock())
    doubled = jax.jit(double_of)
    for size in range(1, 5):
        doubled(jnp.ones(size))
    few = counter.often
    doubled(jnp.ones(5))
    counter.close()
    doubled(jnp.ones(6))
    assert few is None
    assert counter.often is not None
    line = double_of.__code__.co_firstlineno
    assert counter.often.startswith(f"XLA compiled double_of (jax_hooks.py:{line}) 5 times, ")


def test_compilations_in_a_small_share_of_the_run_are_not_worth_a_warning() -> None:
    clock = Clock()
    counter = CompilationCounter(clock)
    for size in range(1, 8):
        jax.jit(double_of)(jnp.ones(size))
    clock.seconds = 10_000.0
    counter.close()
    assert counter.often is None


def test_functions_of_jax_itself_are_not_named() -> None:
    """A program that makes its parameters compiles `jnp.ones` for each shape."""
    counter = CompilationCounter(Clock())
    for size in range(20, 30):
        jnp.ones(size) @ jnp.ones(size)
    counter.close()
    assert counter.count >= 10
    assert counter.often is None
