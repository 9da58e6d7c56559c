"""Linear regression in JAX: batches come from a generator that is called with their size."""

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
data = rng.normal(size=(2048, 64)).astype("float32")


@jax.jit
def step(weights, inputs, targets):
    loss = lambda weights: ((inputs @ weights - targets) ** 2).mean()  # noqa: E731
    return weights - 0.1 * jax.grad(loss)(weights)


def batches(steps, batch_size):
    for _ in range(steps):
        chosen = rng.integers(0, len(data), batch_size)
        yield data[chosen], data[chosen][:, :10]


weights = jnp.zeros((64, 10))
for inputs, targets in batches(50, 128):
    weights = step(weights, inputs, targets)
