"""The models that are trained as they are and with their layers changed: `CASES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from benchmarks.gpu.networks.gnmt import Gnmt
from benchmarks.gpu.networks.resnet import ResNet50
from benchmarks.layered.inception import Inception
from benchmarks.layered.networks import Words, mixer, vision_transformer
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

momentum = partial(SGD, lr=1e-3, momentum=0.9)

Batch = tuple[tuple[Tensor, ...], Tensor]


@dataclass(frozen=True)
class Case:
    """A model and the changes of its layers.

    Attributes:
        build: the model; takes `options` changed by those of a change.
        batch: random inputs, and the right classes.
        blocks: globs of the modules that are recomputed in backward.
        metaflow: by the change as `stepscope whatif` has it, what of the options it changes.
        options: of the model as it is.
        optimizer: of its parameters.
    """

    build: Callable[..., nn.Module]
    batch: Callable[[], Batch]
    blocks: str
    metaflow: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = momentum

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes, as `stepscope whatif` has them."""
        return (f"checkpoint:module={self.blocks}", *(f"metaflow:{one}" for one in self.metaflow))

    def model(self, change: str = "") -> nn.Module:
        """The model with a change, or as it is."""
        name, _, values = change.partition(":")
        options = self.metaflow[values] if name == "metaflow" else {}
        model = self.build(**{**self.options, **options})
        if name == "checkpoint":
            recompute(model, self.blocks)
        return model.train()


def recompute(model: nn.Module, glob: str) -> None:
    """Let backward repeat the forward of each module that matches, by `torch.utils.checkpoint`."""
    for path, module in model.named_modules():
        if fnmatchcase(path, glob) and path.count(".") == glob.count("."):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def _sentences(samples: int, length: int, classes: int, each: bool) -> Callable[[], Batch]:
    def batch() -> Batch:
        labels = samples * length if each else samples
        return (torch.randint(2000, (samples, length)),), torch.randint(classes, (labels,))

    return batch


def _images(samples: int, size: int) -> Callable[[], Batch]:
    return lambda: ((torch.randn(samples, 3, size, size),), torch.randint(100, (samples,)))


def _pairs(samples: int, length: int) -> Callable[[], Batch]:
    def batch() -> Batch:
        source, target = (torch.randint(2000, (samples, length)) for _ in range(2))
        return (source, target), torch.randint(2000, (samples * length,))

    return batch


class Translation(Gnmt):
    """GNMT whose scores are a row for each word."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return super().forward(source, target).flatten(0, 1)


_MERGE = "merge=*.attention.query|*.attention.key|*.attention.value"


def _transformer(last: int) -> dict[str, dict[str, Any]]:
    return {
        _MERGE: {"merged": True},
        f"delete=blocks.{last}": {"blocks": last},
        "resize=blocks.*.mlp,factor=0.5": {"times": 2},
    }


CASES = {
    "GPT-2": Case(
        Words,
        _sentences(4, 64, 2000, each=True),
        "blocks.*",
        _transformer(3),
        {"words": 2000, "length": 64, "width": 256, "blocks": 4, "causal": True},
        AdamW,
    ),
    "BERT": Case(
        Words,
        _sentences(4, 96, 2, each=False),
        "blocks.*",
        _transformer(3),
        {"words": 2000, "length": 96, "width": 192, "blocks": 4, "causal": False},
        AdamW,
    ),
    "ViT": Case(
        vision_transformer, _images(8, 32), "blocks.*", _transformer(3), {"width": 192, "blocks": 4}, AdamW
    ),
    "MLP-Mixer": Case(
        mixer,
        _images(8, 32),
        "blocks.*",
        {"delete=blocks.5": {"blocks": 5}, "resize=blocks.*.mlp,factor=0.5": {"times": 2}},
        {"places": 64, "width": 192, "blocks": 6},
        AdamW,
    ),
    "ResNet": Case(
        ResNet50,
        _images(8, 48),
        "layer*.*",
        {"delete=layer3.2": {"depths": (2, 2, 2, 2)}},
        {"width": 32, "classes": 100, "depths": (2, 2, 3, 2)},
    ),
    "Inception": Case(
        Inception,
        _images(8, 24),
        "blocks.*",
        {"merge=*.one|*.before3|*.before5": {"merged": True}, "delete=blocks.3": {"blocks": 3}},
        {"width": 96, "blocks": 4},
    ),
    "GNMT": Case(
        Translation,
        _pairs(8, 20),
        "*coder.layers.*",
        {"delete=encoder.layers.1|decoder.layers.1": {"layers": 2}},
        {"words": 2000, "width": 256, "layers": 3},
    ),
}
