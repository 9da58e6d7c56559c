"""Ten small models whose steps recording makes longer: a batch, a loss, and optimizers each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Parts:
    """What a training loop calls."""

    batch: Callable[[], Tensor]
    loss: Callable[[Tensor], Tensor]
    optimizers: list[torch.optim.Optimizer]

    def zero(self) -> None:
        """Clear the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Step every optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()


def _trained(
    model: nn.Module,
    shape: tuple[int, ...],
    optimizer: Callable[..., torch.optim.Optimizer],
    **options: object,
) -> Parts:
    return Parts(
        lambda: torch.randn(shape),
        lambda batch: model(batch).square().mean(),
        [optimizer(model.parameters(), lr=1e-3, **options)],
    )


def _layers(count: int, width: int) -> nn.Sequential:
    pairs = ((nn.Linear(width, width), nn.ReLU()) for _ in range(count))
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


class Block(nn.Module):
    """A transformer block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, width)."""
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width / self.heads), -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm2(x))


class Recurrent(nn.Module):
    """An LSTM and a head."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(32, 48, 2), nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        """x: (time, batch, 32)."""
        return self.head(self.cell(x)[0])


class Convolutions(nn.Module):
    """Three convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 8, 16, 16]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairwise(widths)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 3, height, width)."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class Embedded(nn.Module):
    """Eight embedding tables and a small MLP, as in recommendation."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
        self.top = _layers(3, 128)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 8), indices."""
        found = [table(x[:, n]) for n, table in enumerate(self.tables)]
        return self.top(torch.cat(found, 1))


def _recommendation() -> Parts:
    model = Embedded()
    return Parts(
        lambda: torch.randint(0, 1000, (64, 8)),
        lambda batch: model(batch).square().mean(),
        [torch.optim.Adagrad(model.parameters(), lr=1e-2)],
    )


def _two_models() -> Parts:
    generator, critic = _layers(4, 32), nn.Sequential(_layers(4, 32), nn.Linear(32, 1))

    def loss(batch: Tensor) -> Tensor:
        fake = generator(batch)
        return F.softplus(critic(fake)).mean() + F.softplus(-critic(batch)).mean()

    return Parts(
        lambda: torch.randn(32, 32),
        loss,
        [torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False) for model in (critic, generator)],
    )


def _several_optimizers() -> Parts:
    models = [_layers(2, 48) for _ in range(3)]

    def loss(batch: Tensor) -> Tensor:
        for model in models:
            batch = model(batch)
        return batch.square().mean()

    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop)
    return Parts(
        lambda: torch.randn(32, 48),
        loss,
        [kind(model.parameters(), lr=1e-3) for kind, model in zip(kinds, models, strict=True)],
    )


def _autoencoder() -> Parts:
    encoder, decoder = _layers(3, 64), _layers(3, 64)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    return Parts(
        lambda: torch.randn(32, 64),
        lambda batch: F.mse_loss(decoder(encoder(batch)), batch),
        [torch.optim.AdamW(model.parameters(), lr=1e-3)],
    )


MODELS: dict[str, Callable[[], Parts]] = {
    "mlp_adam_loop": lambda: _trained(_layers(8, 64), (32, 64), torch.optim.Adam, foreach=False),
    "mlp_adam_foreach": lambda: _trained(_layers(8, 64), (32, 64), torch.optim.Adam, foreach=True),
    "convolutions": lambda: _trained(Convolutions(), (8, 3, 32, 32), torch.optim.SGD, momentum=0.9),
    "gpt": lambda: _trained(nn.Sequential(*(Block(48, 4) for _ in range(3))), (4, 24, 48), torch.optim.AdamW),
    "lstm": lambda: _trained(Recurrent(nn.LSTM), (12, 8, 32), torch.optim.SGD),
    "gru": lambda: _trained(Recurrent(nn.GRU), (12, 8, 32), torch.optim.Adam),
    "recommendation": _recommendation,
    "two_models": _two_models,
    "several_optimizers": _several_optimizers,
    "autoencoder": _autoencoder,
}
