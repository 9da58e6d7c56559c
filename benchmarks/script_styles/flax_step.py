"""flax: one jitted step, so only the whole step can be timed."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from hand_timers import STEPS, end_step


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.gelu(nn.Dense(512)(x)))


model, optimizer = Net(), optax.adamw(1e-3)
key = jax.random.key(0)
weights = model.init(key, jnp.ones((1, 256)))
state = optimizer.init(weights)
batch = jax.random.normal(key, (128, 256))


@jax.jit
def train_step(weights, state, batch):
    gradients = jax.grad(lambda chosen: jnp.square(model.apply(chosen, batch)).mean())(weights)
    change, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, change), state


for _ in range(STEPS):
    weights, state = train_step(weights, state, batch)
    jax.block_until_ready(weights)
    end_step()
