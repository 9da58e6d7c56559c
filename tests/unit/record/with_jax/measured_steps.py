"""What the measuring process learns of JAX's steps: bytes on a device, arrays that were donated."""

from __future__ import annotations

import os
from collections import namedtuple
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from stepscope.record.batch_size.jax_steps import ProgramMemory, assigned_bytes, bytes_on_device
from stepscope.record.jax.jit_calls import JitCall, JitCallWatch


def test_a_sharded_array_counts_with_its_part_on_one_device() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    whole, parts = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    array = jnp.ones((8, 16))
    assert bytes_on_device(jax.device_put(array, whole)) == 8 * 16 * 4
    assert bytes_on_device(jax.device_put(array, parts)) == 2 * 16 * 4


def test_a_donated_array_has_no_bytes() -> None:
    array = jnp.ones(16)
    array.delete()
    assert bytes_on_device(array) == 0


def test_the_peak_is_the_program_with_the_most_and_what_is_held_besides() -> None:
    kept = jnp.ones(1000)
    weights, x = jnp.ones((64, 32)), jnp.ones((48, 64))
    product = jax.jit(lambda weights, x: jnp.tanh(x @ weights).sum())
    small = jax.jit(lambda x: x + 1)
    for function, arguments in ((product, (weights, x)), (small, (kept,))):
        function(*arguments)  # the calls that compile are not reported
    memory = ProgramMemory()
    watch = JitCallWatch(memory.returned)
    memory.is_watching = True
    product(weights, x)
    small(kept)
    memory.is_watching = False
    product(weights, x)
    watch.remove()
    assigned = assigned_bytes(product.lower(weights, x).compile().memory_analysis())
    assert memory.bytes == assigned + kept.nbytes
    assert memory.is_exact


def kinds(update: Any, state: Any, batch: Any) -> dict[str, int]:
    """Memory by kind of a function that returns the state that its next call takes."""
    memory = ProgramMemory()
    watch = JitCallWatch(memory.returned)
    for _ in range(3):
        state = update(*state, batch)
    memory.is_watching = True
    update(*state, batch)
    memory.is_watching = False
    watch.remove()
    found: dict[str, int] = memory.kinds
    assert sum(found.values()) == memory.bytes
    return {kind: size for kind, size in found.items() if kind not in ("temporaries", "others")}


def test_the_peak_is_split_into_what_the_program_keeps_and_what_it_gets() -> None:
    @jax.jit
    def update(params: Any, state: Any, x: Any) -> Any:
        moment = 0.9 * state.mu + x.sum()
        return params - moment, state._replace(mu=moment)

    State = namedtuple("State", "mu")
    state = jnp.ones((64, 32)), State(jnp.ones((64, 32)))
    assert kinds(update, state, jnp.ones(100)) == {
        "parameters": 8192,
        "optimizer_state": 8192,
        "inputs": 400,
        "results": 2 * 8192 + 16,
    }


def test_donated_state_takes_no_memory_for_results() -> None:
    """Nothing names an optimizer."""
    update = jax.jit(lambda weights, x: (weights * 0.9 + x.sum(),), donate_argnums=0)
    found = kinds(update, (jnp.ones((64, 32)),), jnp.ones(100))
    assert found == {"state": 8192, "inputs": 400, "results": found["results"]}
    assert found["results"] < 64  # the table of a tuple


def test_a_program_of_unknown_memory_counts_with_its_arrays() -> None:
    memory = ProgramMemory()
    memory.is_watching = True
    x, y = jnp.ones(10), jnp.ones(20)
    others = sum(bytes_on_device(array) for array in jax.live_arrays()) - 120

    def unknown() -> None:
        raise AttributeError("lower")

    memory.returned(JitCall("compiled", ((x,), {}), y, unknown))
    assert memory.bytes == 120 + others
    assert not memory.is_exact
