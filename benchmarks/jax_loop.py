"""A JAX loop with its own timers, to compare with the report of `stepscope run`.

    stepscope run -o loop.stepscope benchmarks/jax_loop.py WIDTH LOAD_MS async|sync
    stepscope report loop.stepscope

It prints the mean of a step in the long run and the times from one return of `update` to the next,
two of the recorded ones among them. With `sync` it reads each step's loss back: then its times go
from one such reading to the next, and the report's from one return to the next.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, LOAD_MS, SYNC = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "sync"
STEPS = 60
RECORDED = slice(5, 7)  # the third one's time has the end of the recording in it


def loss_of(params, x):
    for number, weights in enumerate(params):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ weights)
    return (x**2).mean()


@jax.jit
def update(params, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return [p - 0.01 * g for p, g in zip(params, grads, strict=True)], loss


def load_batch():
    time.sleep(LOAD_MS / 1000)
    return np.ones((256, WIDTH), np.float32)


params = [jnp.ones((WIDTH, WIDTH)) / WIDTH for _ in range(4)]
params, loss = update(params, load_batch())
begin = time.perf_counter()
returned = [begin]
for _ in range(STEPS):
    params, loss = update(params, load_batch())
    if SYNC:
        float(loss)
    returned.append(time.perf_counter())
loss.block_until_ready()
each = 1000 * np.diff(returned)
print(f"mean {1000 * (time.perf_counter() - begin) / STEPS:.2f} ms a step")
print(f"returns: recorded {np.round(each[RECORDED], 2)}, after {np.round(each[8:13], 2)}")
print(f"last 20, median: {np.median(each[-20:]):.2f} ms")
