"""What the collector of contexts does to JAX, with an extension that only notes what it is told."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import array as jax_array
from jax._src import dispatch

from stepscope.record.contexts.jax_adapter import JaxAdapter, describe_function


class Extension:
    """What the collector in C++ would be told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[str] = []
        self.spent: list[tuple[str, str]] = []

    def begin_whole(self, name: str) -> str:
        self.begun.append(name)
        return name

    def end(self, token: str) -> None:
        self.begun.append(f"end of {token}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def watch_calls(self, kind: type, resolve: Any, compiled: Any) -> str:
        return ""

    def watch_buffers(self, kind: type, name: str) -> str:
        return ""

    def compiled(self) -> bool:
        return False

    def spend(self, name: str, file: str, line: int, parts: dict[str, float], is_one_call: bool) -> None:
        self.spent += [(name, part) for part in parts]

    def forget_call(self, address: int) -> None:
        self.notes.append("forgotten")

    def leave_jax(self) -> None:
        """Nothing to undo."""


@pytest.fixture
def extension() -> Extension:
    return Extension()


def test_waits_and_transfers_have_contexts_until_it_is_detached(extension: Extension) -> None:
    adapter = JaxAdapter(extension)
    x = jnp.arange(3.0)
    adapter.attach()
    jax.block_until_ready(x)
    float(x[0])
    jax.device_put(1.0)
    adapter.detach()
    begun, extension.begun = extension.begun, []
    wait = "wait: block_until_ready"
    assert begun == [
        wait,
        wait,
        f"end of {wait}",
        f"end of {wait}",  # the collector counts the outer one
        "wait: float(x)",
        "end of wait: float(x)",
        "transfer: device_put",
        "end of transfer: device_put",
    ]
    jax.block_until_ready(x)
    float(x[1])
    assert extension.begun == []


def test_a_value_that_is_known_is_not_waited_for(extension: Extension) -> None:
    adapter = JaxAdapter(extension)
    sharded = jnp.float32(1.5) + 1
    adapter.attach()
    sharded._npy_value = sharded.__array__()
    extension.begun.clear()
    assert float(sharded) == 2.5
    adapter.detach()
    assert extension.begun == []


def test_compilation_ahead_of_time_has_a_context(extension: Extension) -> None:
    adapter = JaxAdapter(extension)

    def ahead(x: Any) -> Any:
        return x + 1

    adapter.attach()
    jax.jit(ahead).lower(1.0).compile()
    adapter.detach()
    whole = "compilation of ahead, ahead of time"
    assert {(whole, "trace"), (whole, "lower"), (whole, "compile")} <= set(extension.spent)


def test_a_wait_that_raises_ends(extension: Extension) -> None:
    adapter = JaxAdapter(extension)
    x = jnp.zeros(3)
    x.delete()
    adapter.attach()
    with pytest.raises(RuntimeError, match="deleted"):
        x.block_until_ready()
    adapter.detach()
    assert extension.begun[-1].startswith("end of ")


@pytest.mark.parametrize(
    ("holder", "name", "note"),
    [
        (jax, "effects_barrier", "wait: effects_barrier is not recorded"),
        (jax_array.ArrayImpl, "_value", "wait: values of arrays is not recorded"),
        (jax_array, "ArrayImpl", "reads of arrays as buffers are not recorded"),
    ],
)
def test_what_this_version_lacks_is_noted_and_the_rest_recorded(
    holder: Any, name: str, note: str, extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = JaxAdapter(extension)
    with monkeypatch.context() as hidden:
        hidden.delattr(holder, name)
        adapter.attach()
    jax.device_put(1.0)
    adapter.detach()
    assert any(text.startswith(note) for text in extension.notes)
    assert "transfer: device_put" in extension.begun


def test_transfers_without_the_private_function_are_those_of_device_put(
    extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = JaxAdapter(extension)
    put = dispatch._batched_device_put_impl
    monkeypatch.setattr(dispatch, "put", put, raising=False)
    with monkeypatch.context() as hidden:
        hidden.delattr(dispatch, "_batched_device_put_impl")
        adapter.attach()
        assert jax.device_put is not put
        watched = jax.device_put
        adapter.detach()
    assert watched is not jax.device_put
    assert watched(1.0) == 1.0
    assert "transfer: device_put" in extension.begun


def test_calls_of_python_functions_are_not_recorded(
    extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = JaxAdapter(extension)
    with monkeypatch.context() as changed:
        changed.setattr(jax, "jit", lambda function: function)
        adapter.attach()
    adapter.detach()
    (note,) = extension.notes
    assert note.startswith("calls of compiled functions are not recorded: JAX ")


def test_a_compiled_function_is_named_by_its_definition_and_may_die() -> None:
    died: list[int] = []

    def inner(x: Any) -> Any:
        return x

    name, file, line = describe_function(died.append, compiled := jax.jit(inner))
    assert (name, file) == ("jit(inner)", __file__)
    assert line == inner.__code__.co_firstlineno
    assert describe_function(died.append, jnp.tanh) == ("jit(tanh)", "", 0)
    address = id(compiled)
    del compiled
    assert died == [address]
