"""Plain JAX: a transformer of functions on dictionaries, SGD by `jax.tree.map`, no named scopes."""

import jax
import jax.numpy as jnp
import optax
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

SHAPE = (16, 32, WIDTH)
HEADS = 4


def dense(key, inputs, outputs):
    return {"w": jax.random.normal(key, (inputs, outputs)) / inputs**0.5, "b": jnp.zeros(outputs)}


def init(key):
    keys = iter(jax.random.split(key, 9))
    block = {"qkv": 3 * WIDTH, "out": WIDTH, "up": 4 * WIDTH}
    blocks = [
        {name: dense(next(keys), WIDTH, size) for name, size in block.items()}
        | {"down": dense(next(keys), 4 * WIDTH, WIDTH)}
        for _ in range(2)
    ]
    return {"blocks": blocks, "head": dense(next(keys), WIDTH, CLASSES)}


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(block, x):
    batch, length, _ = x.shape
    qkv = linear(block["qkv"], x).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return linear(block["out"], mixed.reshape(batch, length, WIDTH))


def mlp(block, x):
    return linear(block["down"], jax.nn.gelu(linear(block["up"], x)))


def model(params, x):
    for block in params["blocks"]:
        x = x + attention(block, norm(x))
        x = x + mlp(block, norm(x))
    return linear(params["head"], x.mean(1))


def loss_of(params, batch):
    tokens, labels = batch
    return loss_from(model(params, tokens), labels)


@jax.jit
def train_step(params, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), loss


def update(batch):
    global params
    params, loss = train_step(params, batch)
    return loss


params = init(jax.random.key(0))
train(in_stages(loss_of, params, optax.sgd(0.01)) if IN_STAGES else update, SHAPE)
