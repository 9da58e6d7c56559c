"""Flax linen: a small residual CNN, AdamW of optax."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from training import CLASSES, IN_STAGES, in_stages, loss_from, train

SHAPE = (16, 24, 24, 3)


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        y = nn.relu(nn.GroupNorm(8)(nn.Conv(self.width, (3, 3))(x)))
        y = nn.GroupNorm(8)(nn.Conv(self.width, (3, 3))(y))
        return nn.relu(x + y)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(32, (3, 3))(x)
        for _ in range(2):
            x = Block(32)(x)
        return nn.Dense(CLASSES)(x.mean((1, 2)))


model, optimizer = Net(), optax.adamw(1e-3)
params = model.init(jax.random.key(0), jnp.ones(SHAPE))


def loss_of(params, batch):
    images, labels = batch
    return loss_from(model.apply(params, images), labels)


@jax.jit
def train_step(params, state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    changes, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, changes), state, loss


def update(batch):
    global params, state
    params, state, loss = train_step(params, state, batch)
    return loss


state = optimizer.init(params)
train(in_stages(loss_of, params, optimizer) if IN_STAGES else update, SHAPE)
