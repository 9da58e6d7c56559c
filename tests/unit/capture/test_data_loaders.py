"""What a capture says of the data loaders in use."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

from stepscope.capture.creations import LoaderWatch

DATA = TensorDataset(torch.zeros(4, 1))


def test_loaders_in_use_are_described_and_forgotten_with_their_iterators() -> None:
    watch = LoaderWatch()
    try:
        iterator = iter(DataLoader(DATA, batch_size=2))
        next(iterator)
        (facts,) = watch.describe()
        assert facts == {
            "workers": 0,
            "pin_memory": False,
            "prefetch_factor": None,
            "persistent_workers": False,
        }
        del iterator
        assert watch.describe() == []
    finally:
        watch.remove()


def test_what_was_watched_is_left_as_it_was() -> None:
    before = dataloader._BaseDataLoaderIter.__init__
    watch = LoaderWatch()
    assert dataloader._BaseDataLoaderIter.__init__ is not before
    watch.remove()
    assert dataloader._BaseDataLoaderIter.__init__ is before
