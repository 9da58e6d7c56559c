"""Records `slow_cpu.xplane.pb.gz`: steps of JAX with a defect for each rule that is JAX's own.

python -m venv venv && venv/bin/pip install jax==0.10.2 && venv/bin/python record_slow.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from record import keep_profile

WIDTH = 512


def loss_of(params, x):
    out = jnp.tanh(x @ params["a"]) @ params["b"]
    loss = (out**2).mean()
    jax.debug.callback(lambda value: None, loss)
    return loss


@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def average(mean, loss):
    for _ in range(24):
        mean = mean * 0.9
    return mean + loss


def main(folder, steps=3):
    params = {"a": jnp.ones((WIDTH, WIDTH)), "b": jnp.ones((WIDTH, WIDTH))}
    batches = [jnp.ones((16 + step, WIDTH)) for step in range(steps + 1)]
    params, mean = train_step(params, batches[0])
    mean = average(mean, mean).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for step, batch in enumerate(batches[1:]):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                params, loss = train_step(params, batch)
                mean = average(mean, loss).block_until_ready()


if __name__ == "__main__":
    keep_profile(main, "slow_cpu.xplane.pb.gz")
