"""Private names of JAX that a version may lack: what is done without each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import api
from jax._src import monitoring as private_monitoring
from jax._src import profiler as jax_profiler
from jax._src.interpreters import pxla
from jax._src.lib import _profiler

from stepscope.capture.jax import jit_calls, listeners
from stepscope.capture.jax.jax_recorder import JaxRecorder
from stepscope.capture.jax.public_profiler import PublicProfilerRecorder
from stepscope.capture.manifest import Run
from stepscope.capture.options import RecordOptions
from stepscope.capture.session import Session


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (api, "_post_hook_state"),
        (jax_profiler, "_profile_state"),
        (_profiler, "ProfilerSession"),
    ],
)
def test_without_what_recording_needs_the_public_profiler_records(
    holder: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(Run([], RecordOptions()), tmp_path / "train.stepscope")
    with monkeypatch.context() as hidden:
        hidden.delattr(holder, name)
        recorder = session.attach_jax()
    assert isinstance(recorder, PublicProfilerRecorder)
    recorder.detach()


def test_with_all_of_it_steps_are_recorded(tmp_path: Path) -> None:
    recorder = Session(Run([], RecordOptions()), tmp_path / "train.stepscope").attach_jax()
    assert isinstance(recorder, JaxRecorder)
    recorder.detach()


def test_programs_with_effects_are_not_seen_without_their_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    with monkeypatch.context() as hidden:
        hidden.delattr(pxla, "ExecuteReplicated")
        watch = jit_calls.JitCallWatch(lambda call: seen.append(call.name))

    def double(x: Any) -> Any:
        return 2 * x

    doubled = jax.jit(double)
    for _ in range(3):
        doubled(jnp.ones(3))
    watch.close()
    doubled(jnp.ones(3))
    assert seen == ["double", "double"]  # the first call compiles


def test_a_listener_that_jax_cannot_forget_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in listeners._UNREGISTER:
        monkeypatch.delattr(private_monitoring, name, raising=False)
    counter = jit_calls.CompilationCounter()
    jax.jit(lambda x: x + 17.5)(jnp.ones(5)).block_until_ready()
    counted = counter.count
    counter.close()
    jax.jit(lambda x: x - 17.5)(jnp.ones(5)).block_until_ready()
    assert counted > 0
    assert counter.count == counted
