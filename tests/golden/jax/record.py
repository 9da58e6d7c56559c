"""Records `mlp_cpu.xplane.pb.gz`: a few training steps of a small network, on the CPU.

python -m venv venv && venv/bin/pip install jax==0.10.2 && venv/bin/python record.py
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

WIDTHS = (64, 128, 128, 10)


def init(key):
    keys = jax.random.split(key, len(WIDTHS))
    pairs = zip(keys, WIDTHS, WIDTHS[1:], strict=False)
    return [{"w": jax.random.normal(k, (a, b)) / a**0.5, "b": jnp.zeros(b)} for k, a, b in pairs]


def model(params, x):
    with jax.named_scope("MLP"):
        for number, layer in enumerate(params):
            with jax.named_scope(f"Dense_{number}"):
                x = x @ layer["w"] + layer["b"]
            if number < len(params) - 1:
                x = jax.nn.relu(x)
        return x


def loss_of(params, x, y):
    logits = model(params, x)
    with jax.named_scope("loss"):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss


def load_batch(key):
    with jax.profiler.TraceAnnotation("load_batch"):
        x = jax.random.normal(key, (256, WIDTHS[0]))
        return x, jnp.argmax(x[:, : WIDTHS[-1]], 1)


def main(folder, steps=4):
    params = init(jax.random.key(0))
    for step in range(2):
        params, loss = train_step(params, *load_batch(jax.random.key(step)))
    loss.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for step in range(10, 10 + steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                params, loss = train_step(params, *load_batch(jax.random.key(step)))
                loss.block_until_ready()


def keep_profile(record, name):
    """Compress the profile that `record` leaves in a folder, beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        record(folder)
        (found,) = Path(folder).rglob("*.xplane.pb")
        target = Path(__file__).with_name(name)
        target.write_bytes(gzip.compress(found.read_bytes(), mtime=0))


if __name__ == "__main__":
    keep_profile(main, "mlp_cpu.xplane.pb.gz")
