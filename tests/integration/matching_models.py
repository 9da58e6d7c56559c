"""Models to record on the CPU, with modules registered as their authors do, not as called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Recipe = Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]
VOCABULARY = 90


class BasicBlock(nn.Module):
    """As in torchvision: one ReLU called twice, the downsampling registered last."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 10)
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, VOCABULARY)
        self.dropout = nn.Dropout(0.1)
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True)

    def forward(self, tokens):
        states, _ = self.lstm(self.dropout(self.embed(tokens)))
        return self.head(self.dropout(states))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.source = nn.Embedding(VOCABULARY, 16)
        self.target = nn.Embedding(VOCABULARY, 16)
        self.out = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.transformer(self.source(tokens), self.target(tokens)))


def _classifier():
    model = ResNet()
    return model, lambda: F.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.zeros(2).long())


def _of_tokens(kind: type[nn.Module]) -> Recipe:
    def make():
        model, tokens = kind(), torch.randint(0, VOCABULARY, (2, 12))
        return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return make


def _pretrained(model: str, config: str, **sizes: object) -> Recipe:
    """A transformers model with random weights; it computes its own loss."""

    def make():
        import transformers

        settings = getattr(transformers, config)(vocab_size=VOCABULARY, **sizes)
        built, tokens = getattr(transformers, model)(settings), torch.randint(0, 80, (2, 12))
        return built, lambda: built(input_ids=tokens, labels=tokens).loss

    return make


_SMALL = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {**_SMALL, **_TOKENS, "num_key_value_heads": 1}
_T5 = {"num_layers": 3, "d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64}

MODELS: dict[str, Recipe] = {
    "resnet": _classifier,
    "lstm": _of_tokens(Recurrent),
    "transformer": _of_tokens(Translator),
    "gpt2": _pretrained("GPT2LMHeadModel", "GPT2Config", n_layer=3, n_embd=32, n_head=2, **_TOKENS),
    "bert": _pretrained("BertForMaskedLM", "BertConfig", **_SMALL),
    "llama": _pretrained("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
    "t5": _pretrained("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, **_T5),
    "albert": _pretrained("AlbertForMaskedLM", "AlbertConfig", embedding_size=16, **_SMALL),
    "mixtral": _pretrained("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **_LLAMA),
}
