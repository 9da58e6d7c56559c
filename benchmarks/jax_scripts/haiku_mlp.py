"""Haiku: a residual MLP, Adam of optax with clipped gradients."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

SHAPE = (256, WIDTH)


class Block(hk.Module):
    def __call__(self, x):
        y = hk.Linear(4 * WIDTH, name="up")(hk.LayerNorm(-1, True, True)(x))
        return x + hk.Linear(WIDTH, name="down")(jax.nn.gelu(y))


def net(x):
    for _ in range(4):
        x = Block()(x)
    return hk.Linear(CLASSES, name="head")(x)


model = hk.without_apply_rng(hk.transform(net))
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
params = model.init(jax.random.key(0), jnp.ones(SHAPE))


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


state = optimizer.init(params)
train(in_stages(loss_of, params, optimizer) if IN_STAGES else update, SHAPE)
