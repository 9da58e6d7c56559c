"""Equinox: an MLP-Mixer under vmap, SGD with momentum of optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

TOKENS = 32
SHAPE = (32, TOKENS, WIDTH)


class Mixer(eqx.Module):
    tokens: eqx.nn.MLP
    channels: eqx.nn.MLP
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.tokens = eqx.nn.MLP(TOKENS, TOKENS, 4 * TOKENS, 1, jax.nn.gelu, key=first)
        self.channels = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=second)
        self.norm1 = eqx.nn.LayerNorm(WIDTH)
        self.norm2 = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, x):
        x = x + jax.vmap(self.tokens, 1, 1)(jax.vmap(self.norm1)(x))
        return x + jax.vmap(self.channels)(jax.vmap(self.norm2)(x))


class Net(eqx.Module):
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, key):
        *keys, last = jax.random.split(key, 3)
        self.blocks = [Mixer(one) for one in keys]
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=last)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(0))


def loss_of(model, batch):
    tokens, labels = batch
    return loss_from(jax.vmap(model)(jnp.asarray(tokens)), labels)


@eqx.filter_jit
def train_step(model, state, batch):
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, batch)
    changes, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, changes), state, loss


def update(batch):
    global model, state
    model, state, loss = train_step(model, state, batch)
    return loss


model, optimizer = Net(jax.random.key(0)), optax.sgd(1e-2, momentum=0.9)
params, static = eqx.partition(model, eqx.is_array)
state = optimizer.init(params)
if IN_STAGES:
    update = in_stages(lambda p, b: loss_of(eqx.combine(p, static), b), params, optimizer)
train(update, SHAPE)
