"""The hook after each call of a compiled function, as two generations of JAX have it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

if os.environ.get("CI") != "true" or sys.version_info < (3, 11):
    pytest.importorskip("jax")

from jax._src import api

from stepscope.errors import CaptureError
from stepscope.record.jax.jit_calls import JitCall, JitCallWatch


def train_step(params: int) -> int:
    return params + 1


train_step.__module__ = "train"


@wraps(train_step)
def compiled(params: int) -> int:
    return train_step(params)


Hook = Callable[..., None]


def older(monkeypatch: pytest.MonkeyPatch, state: Any) -> None:
    """JAX whose hook is an attribute of the state of all threads."""
    monkeypatch.delattr(api, "_post_hook_state", raising=False)
    monkeypatch.setattr(api, "jax_jit", SimpleNamespace(global_state=lambda: state))


def test_before_jax_0_7_the_hook_is_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(post_hook=None)
    older(monkeypatch, state)
    calls: list[JitCall] = []
    watch = JitCallWatch(calls.append)
    state.post_hook(compiled, (1,), {}, 2)
    assert [(call.name, call.inputs, call.outputs) for call in calls] == [("train_step", ((1,), {}), 2)]
    watch.close()
    assert state.post_hook is None


def test_the_hook_of_the_program_is_still_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    state = SimpleNamespace(post_hook=lambda *call: called.append(call))
    older(monkeypatch, state)
    of_program: Hook = state.post_hook
    watch = JitCallWatch(lambda call: None)
    state.post_hook(compiled, (1,), {}, 2)
    watch.close()
    assert called == [(compiled, (1,), {}, 2)]
    assert state.post_hook is of_program


def test_without_either_there_is_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    older(monkeypatch, SimpleNamespace())
    with pytest.raises(CaptureError, match="has no hook for calls"):
        JitCallWatch(lambda call: None)
