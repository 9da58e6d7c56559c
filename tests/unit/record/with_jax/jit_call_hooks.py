"""The hook after each call of a compiled function."""

from __future__ import annotations

from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import pytest
from jax._src import api

from stepscope.errors import CaptureError
from stepscope.record.jax.jit_calls import JitCall, JitCallWatch


def train_step(params: int) -> int:
    return params + 1


train_step.__module__ = "train"


@wraps(train_step)
def compiled(params: int) -> int:
    return train_step(params)


class HookState:
    """JAX's state of the hook: one is in force, and each thread may have a value of its own."""

    in_force: Any = None

    def __init__(self, name: str, value: Any, include_in_jit_key: bool = False) -> None:
        self.value = value

    def set_global(self, value: Any) -> None:
        self.value = value


def jax_with(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    HookState.in_force = state
    monkeypatch.setattr(api, "_post_hook_state", state)
    use = partial(setattr, HookState, "in_force")
    monkeypatch.setattr(api, "jax_jit", SimpleNamespace(set_post_hook_state=use))


def test_calls_are_reported_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    of_program = HookState("post_hook", None)
    jax_with(of_program, monkeypatch)
    calls: list[JitCall] = []
    watch = JitCallWatch(calls.append)
    HookState.in_force.value(compiled, (1,), {}, 2)
    assert [(call.name, call.inputs, call.outputs) for call in calls] == [("train_step", ((1,), {}), 2)]
    watch.remove()
    assert HookState.in_force is of_program


def test_the_hook_of_the_program_is_still_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    jax_with(HookState("post_hook", lambda *call: called.append(call)), monkeypatch)
    watch = JitCallWatch(lambda call: None)
    HookState.in_force.value(compiled, (1,), {}, 2)
    watch.remove()
    assert called == [(compiled, (1,), {}, 2)]


def test_a_jax_of_another_form_has_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(api, "_post_hook_state")
    with pytest.raises(CaptureError, match="has no hook for calls"):
        JitCallWatch(lambda call: None)
