"""Flax linen: eight layers as one `nn.scan`, rematerialized, Adam of optax."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

SHAPE = (128, WIDTH)
LAYERS = 8


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.Dense(2 * WIDTH, name="up")(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH, name="down")(nn.gelu(y)), None


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(CLASSES, name="head")(x)


model, optimizer = Net(), optax.adam(1e-3)
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
