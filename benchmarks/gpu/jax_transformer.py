"""Train a transformer on synthetic data with plain JAX, and print how long its last steps took.

    python jax_transformer.py [--quick] [--steps N] [--timed N]

As a user would write it, and knowing nothing of us. The last `--timed` steps are timed together,
from the end of all work before them to the end of theirs.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp

HEADS, CLASSES = 8, 1000


def dense(key, inputs, outputs):
    return {"w": jax.random.normal(key, (inputs, outputs)) / inputs**0.5, "b": jnp.zeros(outputs)}


def init(key, width, blocks):
    keys = iter(jax.random.split(key, 4 * blocks + 1))
    sizes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    layers = [{name: dense(next(keys), *size) for name, size in sizes.items()} for _ in range(blocks)]
    return {"blocks": layers, "head": dense(next(keys), width, CLASSES)}


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(block, x):
    batch, length, width = x.shape
    qkv = linear(block["qkv"], x).reshape(batch, length, 3, HEADS, width // HEADS)
    mixed = jax.nn.dot_product_attention(*jnp.moveaxis(qkv, 2, 0))
    return linear(block["out"], mixed.reshape(batch, length, width))


def mlp(block, x):
    return linear(block["down"], jax.nn.gelu(linear(block["up"], x)))


def model(params, x):
    for block in params["blocks"]:
        x = x + attention(block, norm(x))
        x = x + mlp(block, norm(x))
    return linear(params["head"], x.mean(1))


def loss_of(params, x, labels):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(model(params, x)), labels[:, None], 1)
    return -chosen.mean()


@jax.jit
def update(params, x, labels):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, labels)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--timed", type=int, default=10)
    args = parser.parse_args()
    samples, length, width, blocks = (2, 16, 64, 1) if args.quick else (32, 512, 1024, 8)
    params = init(jax.random.key(0), width, blocks)
    x = jax.random.normal(jax.random.key(1), (samples, length, width))
    labels = jnp.arange(samples) % CLASSES
    for step in range(args.steps):
        if step == args.steps - args.timed:
            jax.block_until_ready(params)
            start = time.perf_counter()
        params, loss = update(params, x, labels)
    jax.block_until_ready(params)
    step_ms = 1e3 * (time.perf_counter() - start) / args.timed
    platform = jax.devices()[0].platform
    print(json.dumps({"step_ms": step_ms, "platform": platform, "loss": float(loss)}))


main()
