"""The loop that every script of this folder runs: batches, steps, and timers around both.

With `stages` in the command line the step is three compiled functions, each timed by hand; else it
is the script's own single one, as most people write it.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hand_timers import STEPS, end_step, timed

CLASSES, WIDTH = 64, 256
IN_STAGES = "stages" in sys.argv[1:]


def load_batch(generator, shape):
    """A batch drawn with NumPy, and the time that reading it from a disk would take."""
    with timed("data"), jax.profiler.TraceAnnotation("load_batch"):
        time.sleep(0.005)
        inputs = generator.standard_normal(shape, np.float32)
        return inputs, generator.integers(0, CLASSES, shape[0])


def loss_from(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train(update, batch_shape, place=lambda batch: batch):
    """Call `update(batch)`, which returns the loss, for as many steps as the benchmark wants."""
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        batch = place(load_batch(generator, batch_shape))
        if IN_STAGES:
            update(batch)
        else:
            with timed("update"):
                update(batch).block_until_ready()
        end_step()


def in_stages(loss_of, params, optimizer):
    """An `update(batch)` of three compiled functions, of `loss_of(params, batch)`."""

    @jax.jit
    def forward(params, batch):
        return jax.vjp(lambda chosen: loss_of(chosen, batch), params)

    @jax.jit
    def backward(pullback):
        return pullback(jnp.ones(()))[0]

    @jax.jit
    def apply_gradients(params, state, gradients):
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state

    state = optimizer.init(params)

    def update(batch):
        nonlocal params, state
        with timed("forward"):
            made = jax.block_until_ready(forward(params, batch))
        loss, pullback = made
        with timed("backward"):
            gradients = jax.block_until_ready(backward(pullback))
        with timed("optimizer"):
            made = jax.block_until_ready(apply_gradients(params, state, gradients))
        params, state = made  # frees the old ones, which is part of no stage
        return loss

    return update
