"""Flax linen: data-parallel over four host devices by sharding, AdamW of optax."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

SHAPE = (512, WIDTH)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = nn.LayerNorm()(x + nn.gelu(nn.Dense(WIDTH)(x)))
        return nn.Dense(CLASSES)(x)


mesh = jax.make_mesh((4,), ("data",))
by_row, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
model, optimizer = Net(), optax.adamw(1e-3)
params = jax.device_put(model.init(jax.random.key(0), jnp.ones(SHAPE)), whole)


def loss_of(params, batch):
    inputs, labels = batch
    return loss_from(model.apply(params, inputs), labels)


@jax.jit
def train_step(params, state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    changes, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, changes), state, loss


def update(batch):
    global params, state
    params, state, loss = train_step(params, state, batch)
    return loss


state = jax.device_put(optimizer.init(params), whole)
train(
    in_stages(loss_of, params, optimizer) if IN_STAGES else update,
    SHAPE,
    place=lambda batch: jax.device_put(batch, by_row),
)
