"""A small Transformer for translation, sentences of 25 words, as SKYLINE's provider functions."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.gpu.networks.translator import Translator

WORDS, LENGTH = 4000, 25


def stepscope_model_provider():
    torch.manual_seed(0)
    return Translator(words=WORDS, width=256, layers=3, heads=4, length=LENGTH)


def stepscope_input_provider(batch_size=32):
    return tuple(torch.randint(WORDS, (batch_size, LENGTH)) for _ in range(3))


def stepscope_iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def iteration(source, target, wanted):
        optimizer.zero_grad()
        scores = model(source, target)
        F.cross_entropy(scores.flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()

    return iteration
