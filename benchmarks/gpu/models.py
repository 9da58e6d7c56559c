"""The models that are measured: `MODELS`, from the least work to the most.

Weights are random and data is synthetic. Each has two sizes: the published one, and a tiny one
(`quick`) that the ordinary tests train on a CPU. transformers is imported only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.gpu.networks.dlrm import Dlrm
from benchmarks.gpu.networks.gnmt import Gnmt
from benchmarks.gpu.networks.resnet import ResNet50
from benchmarks.gpu.networks.translator import Translator
from benchmarks.gpu.networks.unet import UNet
from torch import Tensor, nn

Batch = dict[str, Tensor]
_WORDS, _QUICK_WORDS = 32000, 500


@dataclass(frozen=True)
class Spec:
    """How to train a model.

    Attributes:
        build: the model, given whether it shall be tiny.
        batch: that many samples on the CPU; every tensor's first axis is the sample.
        loss: a forward pass and its loss.
        batch_size: samples in a step, wherever the batch size is not what is studied.
        largest: the batch size at which a search for the edge of memory stops.
        blocks: classes whose calls activation checkpointing repeats in the backward pass.
        images: whether a channels_last layout has any meaning.
    """

    build: Callable[[bool], nn.Module]
    batch: Callable[[int, bool], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    batch_size: int
    largest: int
    blocks: tuple[str, ...]
    images: bool = False

    def samples(self, quick: bool, batch_size: int | None = None) -> int:
        """The batch size to use; tiny models get tiny batches."""
        return batch_size or (2 if quick else self.batch_size)


# -- images


def _resnet50(quick: bool) -> nn.Module:
    return ResNet50(8, 10, depths=(1, 1, 1, 1)) if quick else ResNet50()


def _labelled_images(samples: int, quick: bool) -> Batch:
    size, classes = (32, 10) if quick else (224, 1000)
    images = torch.randn(samples, 3, size, size)
    return {"images": images, "labels": torch.randint(classes, (samples,))}


def _classified(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def _unet(quick: bool) -> nn.Module:
    return UNet(width=4, depth=2) if quick else UNet()


def _masked_images(samples: int, quick: bool) -> Batch:
    size = 32 if quick else 256
    masks = torch.randint(2, (samples, 1, size, size)).float()
    return {"images": torch.randn(samples, 3, size, size), "masks": masks}


def _segmented(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["images"]), batch["masks"])


# -- text


def _bert(quick: bool, layers: int, width: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    if quick:
        layers, width = 2, 32
    config = BertConfig(
        vocab_size=_QUICK_WORDS if quick else 30522,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // (16 if quick else 64),
        intermediate_size=4 * width,
    )
    return BertForMaskedLM(config)


def _bert_base(quick: bool) -> nn.Module:
    return _bert(quick, layers=12, width=768)


def _bert_large(quick: bool) -> nn.Module:
    return _bert(quick, layers=24, width=1024)


def _gpt2(quick: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": _QUICK_WORDS}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**ends, **(tiny if quick else {})))


def _sentences(length: int) -> Callable[[int, bool], Batch]:
    def batch(samples: int, quick: bool) -> Batch:
        shape = (samples, 16 if quick else length)
        return {"words": torch.randint(_QUICK_WORDS if quick else 30000, shape)}

    return batch


def _predicted(model: nn.Module, batch: Batch) -> Tensor:
    return model(input_ids=batch["words"], labels=batch["words"]).loss


# -- translation


def _translator(quick: bool) -> nn.Module:
    return Translator(_QUICK_WORDS, 32, 2, 2) if quick else Translator(_WORDS)


def _gnmt(quick: bool) -> nn.Module:
    return Gnmt(_QUICK_WORDS, 32, 2) if quick else Gnmt(_WORDS)


def _sentence_pairs(length: int) -> Callable[[int, bool], Batch]:
    def batch(samples: int, quick: bool) -> Batch:
        words, places = (_QUICK_WORDS, 8) if quick else (_WORDS, length)
        source = torch.randint(words, (samples, places))
        return {"source": source, "target": torch.randint(words, (samples, places + 1))}

    return batch


def _translated(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch["source"], batch["target"][:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), batch["target"][:, 1:].flatten())


# -- recommendation


def _dlrm(quick: bool) -> nn.Module:
    return Dlrm(tables=4, rows=100, width=8) if quick else Dlrm()


def _visits(samples: int, quick: bool) -> Batch:
    tables, rows = (4, 100) if quick else (26, 50_000)
    return {
        "numbers": torch.rand(samples, 13),
        "categories": torch.randint(rows, (samples, tables, 4)),
        "clicks": torch.randint(2, (samples,)).float(),
    }


def _clicked(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch["numbers"], batch["categories"])
    return F.binary_cross_entropy_with_logits(scores, batch["clicks"])


_BERT = {"loss": _predicted, "blocks": ("BertLayer",)}

MODELS = {
    "dlrm": Spec(_dlrm, _visits, _clicked, 4096, 2**19, ()),
    "resnet50": Spec(_resnet50, _labelled_images, _classified, 64, 2048, ("Bottleneck",), images=True),
    "transformer": Spec(
        _translator,
        _sentence_pairs(64),
        _translated,
        64,
        4096,
        ("TransformerEncoderLayer", "TransformerDecoderLayer"),
    ),
    "gnmt": Spec(_gnmt, _sentence_pairs(48), _translated, 64, 4096, ("LSTM",)),
    "gpt2": Spec(_gpt2, _sentences(512), _predicted, 8, 1024, ("GPT2Block",)),
    "bert_base": Spec(_bert_base, _sentences(128), batch_size=32, largest=4096, **_BERT),
    "unet": Spec(_unet, _masked_images, _segmented, 16, 1024, ("DoubleConv",), images=True),
    "bert_large": Spec(_bert_large, _sentences(128), batch_size=16, largest=2048, **_BERT),
}
