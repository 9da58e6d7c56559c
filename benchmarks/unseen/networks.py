"""Four small models as their papers describe them: `NETWORKS`.

An encoder-decoder transformer (T5), a ConvNet of today (ConvNeXt), a recurrent translator with
attention (Bahdanau), and a vision transformer with registers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 512


class RMSNorm(nn.Module):
    """T5's norm: no mean, no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, width)."""
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    """Attention of x to `memory`, by products and softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (batch, time, width); memory: (batch, other time, width)."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(x), self.k(memory), self.v(memory))
        )
        scores = q @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down, self.dropout = nn.Linear(2 * width, width, bias=False), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, width)."""
        return self.down(self.dropout(F.gelu(self.gate(x)) * self.up(x)))


class Block(nn.Module):
    """A layer of the encoder, or of the decoder with `crossed`."""

    def __init__(self, width: int, heads: int, crossed: bool) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width, heads), RMSNorm(width)
        self.cross = Attention(width, heads) if crossed else None
        self.cross_norm = RMSNorm(width) if crossed else None
        self.feed_forward, self.last_norm = FeedForward(width), RMSNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """x: (batch, time, width)."""
        y = self.norm(x)
        x = x + self.attention(y, y, mask)
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            x = x + self.cross(self.cross_norm(x), memory)
        return x + self.feed_forward(self.last_norm(x))


class EncoderDecoder(nn.Module):
    """A transformer of T5's kind."""

    def __init__(self, width: int = 128, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, width)
        self.encoder = nn.ModuleList(Block(width, heads, False) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, heads, True) for _ in range(depth))
        self.encoder_norm, self.decoder_norm = RMSNorm(width), RMSNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source, target: (batch, time), words."""
        memory = self.shared(source)
        for block in self.encoder:
            memory = block(memory)
        memory = self.encoder_norm(memory)
        x, length = self.shared(target), target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        for block in self.decoder:
            x = block(x, memory, mask)
        return self.head(self.decoder_norm(x))


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, width, height, width of the image)."""
        x = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), self.weight, self.bias, 1e-6)
        return x.permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A depthwise convolution, a norm and a perceptron on the last dimension, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand, self.act = nn.Linear(width, 4 * width), nn.GELU()
        self.project = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, width, height, width of the image)."""
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.project(self.act(self.expand(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """A ConvNeXt of three stages."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), depths: tuple[int, ...] = (1, 2, 1)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0]))
        self.downsample = nn.ModuleList(
            nn.Sequential(ChannelNorm(a), nn.Conv2d(a, b, 2, 2)) for a, b in pairwise(widths)
        )
        self.stages = nn.ModuleList(
            nn.Sequential(*(ConvNextBlock(width) for _ in range(depth)))
            for width, depth in zip(widths, depths, strict=True)
        )
        self.norm, self.head = nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], 10)

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 3, height, width)."""
        x = self.stages[0](self.stem(images))
        for downsample, stage in zip(self.downsample, list(self.stages)[1:], strict=True):
            x = stage(downsample(x))
        return self.head(self.norm(x.mean((-2, -1))))


class Additive(nn.Module):
    """Bahdanau's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.energy = nn.Linear(width, 1, bias=False)

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        """state: (batch, width); memory: (batch, time, width)."""
        energy = self.energy(torch.tanh(self.query(state)[:, None] + self.key(memory)))
        return (energy.softmax(1) * memory).sum(1)


class RecurrentTranslator(nn.Module):
    """A GRU encoder, and a decoder that looks at it before each word."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.attention, self.cell = Additive(width), nn.GRUCell(2 * width, width)
        self.out = nn.Linear(width, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source, target: (batch, time), words."""
        memory, last = self.encoder(self.source(source))
        state, states = last[0], []
        for word in self.target(target).unbind(1):
            state = self.cell(torch.cat((word, self.attention(state, memory)), 1), state)
            states.append(state)
        return self.out(torch.stack(states, 1))


class VitBlock(nn.Module):
    """A layer of a vision transformer with fused attention and layer scale."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.scale1 = nn.Linear(width, width), nn.Parameter(torch.full((width,), 1e-1))
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale2 = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, width)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.scale1 * self.proj(mixed)
        return x + self.scale2 * self.mlp(self.norm2(x))


class RegisterVit(nn.Module):
    """A vision transformer whose tokens include four registers."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4, size: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls, self.registers = (nn.Parameter(torch.randn(1, n, width) * 0.02) for n in (1, 4))
        self.position = nn.Parameter(torch.randn(1, (size // 8) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(VitBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 3, size, size)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        cls, registers = (part.expand(len(x), -1, -1) for part in (self.cls, self.registers))
        x = self.norm(self.blocks(torch.cat((cls, registers, x), 1)))
        return self.head(torch.cat((x[:, 0], x[:, 5:].mean(1)), 1))


class Training(NamedTuple):
    """A model, its random batches, and the loss of one."""

    model: nn.Module
    batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]


def _of_words(model: nn.Module, batch: int, length: int) -> Training:
    def loss(source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    return Training(model.train(), lambda: torch.randint(WORDS, (2, batch, length)).unbind(), loss)


def _of_images(model: nn.Module, batch: int, size: int) -> Training:
    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels)

    return Training(
        model.train(), lambda: (torch.randn(batch, 3, size, size), torch.randint(10, (batch,))), loss
    )


NETWORKS: dict[str, Callable[[], Training]] = {
    "encoder-decoder": lambda: _of_words(EncoderDecoder(), 8, 32),
    "ConvNeXt": lambda: _of_images(ConvNext(), 8, 64),
    "GRU with attention": lambda: _of_words(RecurrentTranslator(), 16, 16),
    "ViT with registers": lambda: _of_images(RegisterVit(), 8, 64),
}
