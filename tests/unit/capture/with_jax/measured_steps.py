"""What the measuring process learns of JAX's steps: bytes on a device, arrays that were donated."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from stepscope.capture.batch_size.jax_framework import JaxFramework, assigned_bytes, bytes_on_device
from stepscope.capture.jax.jit_calls import JitCall, JitCallWatch


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
    framework = JaxFramework()
    watch = JitCallWatch(framework.returned)
    framework.begin_memory(0)
    product(weights, x)
    small(kept)
    framework.end_memory_step(last=True)
    product(weights, x)
    watch.close()
    assigned = assigned_bytes(product.lower(weights, x).compile().memory_analysis())
    assert framework.peak().bytes == assigned + kept.nbytes
    assert framework.facts()["exact"]


def test_a_program_of_unknown_memory_counts_with_its_arrays() -> None:
    framework = JaxFramework()
    framework.begin_memory(0)
    x, y = jnp.ones(10), jnp.ones(20)
    others = sum(bytes_on_device(array) for array in jax.live_arrays()) - 120

    def unknown() -> None:
        raise AttributeError("lower")

    framework.returned(JitCall("compiled", ((x,), {}), y, unknown))
    assert framework.peak().bytes == 120 + others
    assert not framework.facts()["exact"]
