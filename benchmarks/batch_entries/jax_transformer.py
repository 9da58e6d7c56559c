"""A Transformer encoder in plain JAX, sentences of 32 words, as provider functions."""

import jax
import jax.numpy as jnp

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 4000, 32, 256, 4, 3


def matrix(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5


def stepscope_model_provider():
    keys = iter(jax.random.split(jax.random.key(0), 4 * LAYERS + 2))
    sizes = {"qkv": 3 * WIDTH, "out": WIDTH, "up": 4 * WIDTH}
    layers = [
        {name: matrix(next(keys), WIDTH, size) for name, size in sizes.items()}
        | {"down": matrix(next(keys), 4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    return {
        "embed": matrix(next(keys), WORDS, WIDTH),
        "layers": layers,
        "head": matrix(next(keys), WIDTH, WORDS),
    }


def stepscope_input_provider(batch_size=32):
    return (jax.random.randint(jax.random.key(1), (batch_size, LENGTH), 0, WORDS),)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(layer, x):
    batch, length, _ = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["out"]


def loss_of(params, words):
    x = params["embed"][words]
    for layer in params["layers"]:
        x = x + attention(layer, norm(x))
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(norm(x) @ params["head"])
    return -jnp.take_along_axis(scores, words[..., None], -1).mean()


def stepscope_iteration_provider(params):
    @jax.jit(donate_argnums=0)
    def update(params, words):
        gradients = jax.grad(loss_of)(params, words)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)

    def iteration(words):
        nonlocal params
        params = update(params, words)

    return iteration
