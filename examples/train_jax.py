"""Teach a small transformer to sort numbers. Needs only jax; some seconds on a laptop's CPU.

The batches are drawn with NumPy as they are asked for, so loading them is a real part of each step.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np

NUMBERS, LENGTH, LAYERS, HEADS, WIDTH = 64, 32, 2, 4, 128


def dense(key, inputs, outputs):
    return {"w": jax.random.normal(key, (inputs, outputs)) / inputs**0.5, "b": jnp.zeros(outputs)}


def init(key):
    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))
    return {
        "embed": 0.02 * jax.random.normal(next(keys), (NUMBERS, WIDTH)),
        "place": 0.02 * jax.random.normal(next(keys), (LENGTH, WIDTH)),
        "blocks": [
            {
                "qkv": dense(next(keys), WIDTH, 3 * WIDTH),
                "out": dense(next(keys), WIDTH, WIDTH),
                "up": dense(next(keys), WIDTH, 4 * WIDTH),
                "down": dense(next(keys), 4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ],
        "head": dense(next(keys), WIDTH, NUMBERS),
    }


def apply(layer, x):
    return x @ layer["w"] + layer["b"]


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


@jax.named_scope("attention")
def attention(block, x):
    batch, length, _ = x.shape
    qkv = apply(block["qkv"], x).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return apply(block["out"], mixed.reshape(batch, length, WIDTH))


@jax.named_scope("mlp")
def mlp(block, x):
    return apply(block["down"], jax.nn.gelu(apply(block["up"], x)))


@jax.named_scope("Transformer")
def model(params, tokens):
    x = params["embed"][tokens] + params["place"]
    for number, block in enumerate(params["blocks"]):
        with jax.named_scope(f"block_{number}"):
            x = x + attention(block, norm(x))
            x = x + mlp(block, norm(x))
    with jax.named_scope("head"):
        return apply(params["head"], norm(x))


def loss_of(params, tokens, wanted):
    logits = model(params, tokens)
    with jax.named_scope("loss"):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], -1)
        return -chosen.mean()


@functools.partial(jax.jit, donate_argnums=(0, 1))
def update(params, moments, tokens, wanted, lr):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, wanted)
    with jax.named_scope("optimizer"):
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        params = jax.tree.map(lambda p, m: p - lr * m, params, moments)
    return params, moments, loss


def load_batch(generator, size):
    tokens = generator.integers(0, NUMBERS, (size, LENGTH))
    return tokens, np.sort(tokens, axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    args = parser.parse_args()

    generator = np.random.default_rng(0)
    params = init(jax.random.key(0))
    moments = jax.tree.map(jnp.zeros_like, params)
    for step in range(args.steps):
        tokens, wanted = load_batch(generator, args.batch)
        params, moments, loss = update(params, moments, tokens, wanted, args.lr)
        if step % 10 == 0:
            print(f"step {step:3}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
