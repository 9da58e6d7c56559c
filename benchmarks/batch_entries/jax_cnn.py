"""A residual CNN in plain JAX on images of 32 by 32, Adam by hand, as a script."""

import jax
import jax.numpy as jnp
import numpy as np

batch_size = 32

WIDTH, BLOCKS, CLASSES = 32, 4, 10


def convolve(x, weights):
    return jax.lax.conv_general_dilated(
        x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def loss_of(params, images, labels):
    x = convolve(images, params["stem"])
    for first, second in params["blocks"]:
        x = x + convolve(jax.nn.relu(convolve(x, first)), second)
    scores = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
    return -jnp.take_along_axis(scores, labels[:, None], -1).mean()


@jax.jit
def train_step(params, moments, images, labels):
    gradients = jax.grad(loss_of)(params, images, labels)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, moments[1], gradients)
    step = jax.tree.map(lambda m, s: 1e-3 * m / (jnp.sqrt(s) + 1e-8), mean, square)
    return jax.tree.map(jnp.subtract, params, step), (mean, square)


keys = iter(jax.random.split(jax.random.key(0), 2 * BLOCKS + 2))
block = (3, 3, WIDTH, WIDTH)
params = {
    "stem": jax.random.normal(next(keys), (3, 3, 3, WIDTH)) / 5,
    "blocks": [tuple(jax.random.normal(next(keys), block) / 17 for _ in range(2)) for _ in range(BLOCKS)],
    "head": jax.random.normal(next(keys), (WIDTH, CLASSES)) / 6,
}
zeros = jax.tree.map(jnp.zeros_like, params)
moments = (zeros, zeros)
generator = np.random.default_rng(0)
for _ in range(100):
    images = generator.standard_normal((batch_size, 32, 32, 3), np.float32)
    labels = generator.integers(0, CLASSES, batch_size)
    params, moments = train_step(params, moments, images, labels)
