"""How often workers of data loaders are started, and what the training loop waits for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stepscope.record.run_shares.activity_hooks import ActivityHooks
from stepscope.record.run_shares.activity_log import ActivityLog

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, where a test before this one imported it
DATA = TensorDataset(torch.zeros(6, 2))


def counted(*loaders: DataLoader[object], epochs: int = 2) -> dict[str, int] | None:
    hooks = ActivityHooks(ActivityLog())
    for _ in range(epochs):
        for loader in loaders:
            assert len(list(loader)) == 3
    hooks.remove()
    return hooks.workers.describe()


def test_workers_start_for_every_epoch_unless_they_are_kept() -> None:
    facts = counted(DataLoader(DATA, batch_size=2, num_workers=1))
    assert facts is not None
    assert {
        name: facts[name] for name in ("starts", "workers", "first", "batches", "loaders", "datasets")
    } == {"starts": 2, "workers": 1, "first": 2, "batches": 4, "loaders": 1, "datasets": 1}
    assert min(facts["starting_ns"], facts["first_ns"], facts["stopping_ns"]) > 0
    kept = counted(DataLoader(DATA, batch_size=2, num_workers=1, persistent_workers=True))
    assert kept is not None
    assert kept["starts"] == 1


@dataclass(eq=True, init=False)
class Unhashable(DataLoader[object]):
    """A loader as a program may make it."""


def test_loaders_that_have_no_hash_count() -> None:
    facts = counted(Unhashable(DATA, batch_size=2, num_workers=1))
    assert facts is not None
    assert (facts["starts"], facts["loaders"]) == (2, 1)


def test_loaders_without_workers_do_not_count() -> None:
    assert counted(DataLoader(DATA, batch_size=2)) is None


def test_a_loader_for_every_epoch_has_the_same_data() -> None:
    facts = counted(*(DataLoader(DATA, batch_size=2, num_workers=1) for _ in range(2)), epochs=1)
    assert facts is not None
    assert (facts["starts"], facts["loaders"], facts["datasets"]) == (2, 2, 1)
