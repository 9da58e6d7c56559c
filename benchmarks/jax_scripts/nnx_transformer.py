"""Flax nnx: a small transformer, its own optimizer around AdamW of optax."""

import optax
from flax import nnx
from training import CLASSES, IN_STAGES, WIDTH, in_stages, loss_from, train

SHAPE = (16, 32, WIDTH)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = Block(rngs)
        self.second = Block(rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(self.second(self.first(x)).mean(1))


def loss_of(model, batch):
    tokens, labels = batch
    return loss_from(model(tokens), labels)


@nnx.jit
def train_step(model, optimizer, batch):
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


model = Net(nnx.Rngs(0))
adamw = optax.adamw(1e-3)
if IN_STAGES:
    graph, params = nnx.split(model)
    train(in_stages(lambda p, batch: loss_of(nnx.merge(graph, p), batch), params, adamw), SHAPE)
else:
    optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
    train(lambda batch: train_step(model, optimizer, batch), SHAPE)
