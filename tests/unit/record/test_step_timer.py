"""Times of unrecorded steps, with a clock that only the program advances."""

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from stepscope.record.unreplaced import time
from stepscope.record.verify_trial import StepTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time; afterwards torch is as it was, which a timer does not see to itself."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    load = dataloader._BaseDataLoaderIter.__next__
    hooks = dict(torch_optimizer._global_optimizer_pre_hooks)
    yield now
    dataloader._BaseDataLoaderIter.__next__ = load
    torch_optimizer._global_optimizer_pre_hooks.clear()
    torch_optimizer._global_optimizer_pre_hooks.update(hooks)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_is_not_optimizer(clock: list[int], by_name: bool) -> None:
    parameter = nn.Parameter(torch.ones(2))

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            loss = closure()
            clock[0] += 7
            return loss

    timer = StepTimer(1, 3, StopIteration())
    optimizer = Slow([parameter], lr=0.1)

    def closure() -> torch.Tensor:
        clock[0] += 100
        return parameter.sum()

    def train() -> None:
        while True:
            optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    with pytest.raises(StopIteration):
        train()
    facts = timer.finish()
    assert facts["steps_ns"] == [107] * 3
    assert facts["parts_ns"]["optimizer"] == [7] * 3
