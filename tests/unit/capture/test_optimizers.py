"""Optimizer steps as seen from outside, and torch left as it was."""

import pytest
import torch
from torch import nn

from stepscope.capture.optimizers import OptimizerWatch


def parameter():
    value = nn.Parameter(torch.ones(2))
    value.grad = torch.ones(2)
    return value


@pytest.fixture
def seen():
    """The optimizers that stepped, in order."""
    seen = []
    watch = OptimizerWatch(seen.append)
    yield seen
    watch.close()


def test_every_optimizer_is_seen_once_for_each_step(seen):
    first = torch.optim.SGD([parameter()], lr=0.1)
    second = torch.optim.AdamW([parameter()], fused=True)
    first.step()
    second.step()
    first.step()

    assert seen == [first, second, first]


def test_a_subclass_that_calls_super_is_seen_once(seen):
    class Loud(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD([parameter()], lr=0.1)
    loud = Loud([parameter()], lr=0.1)
    loud.step()

    assert seen == [loud]


def test_lbfgs_with_its_closure_is_seen_once_for_each_step(seen):
    value = parameter()
    optimizer = torch.optim.LBFGS([value], max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (value**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)

    assert seen == [optimizer]


def test_a_step_that_the_scaler_skips_is_not_seen(seen):
    value = parameter()
    optimizer = torch.optim.SGD([value], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    scaler.scale(torch.ones(1))
    for gradient in (float("inf"), 1.0):
        value.grad = torch.full((2,), gradient)
        scaler.step(optimizer)
        scaler.update()

    assert seen == [optimizer]


@pytest.mark.parametrize("scheduled", ["before", "after"])
def test_a_scheduler_that_replaced_step_hides_nothing(scheduled):
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    seen = []
    if scheduled == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    watch = OptimizerWatch(seen.append)
    if scheduled == "after":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    for _ in range(3):
        optimizer.step()
        scheduler.step()
    watch.close()
    optimizer.step()

    assert seen == [optimizer] * 3


def test_a_step_is_over_when_it_is_reported():
    """The range that torch writes for the optimizer must not reach into the next step."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def mark(_):
        with torch.profiler.record_function("next step"):
            pass

    watch = OptimizerWatch(mark)
    optimizer.step()  # from here on the scheduler's own step is watched, too
    with torch.profiler.profile() as profiler:
        optimizer.step()
        scheduler.step()
    watch.close()

    ranges = {e.name(): e for e in profiler.profiler.kineto_results.events()}
    assert ranges["Optimizer.step#SGD.step"].end_ns() <= ranges["next step"].start_ns()


def test_closing_leaves_torch_as_it_was():
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    before = torch.optim.SGD.step, torch.optim.Optimizer.profile_hook_step, vars(optimizer).copy()
    watch = OptimizerWatch(lambda _: None)
    optimizer.step()
    watch.close()

    assert torch.optim.SGD.step is before[0]
    assert torch.optim.Optimizer.profile_hook_step is before[1]
    assert vars(optimizer).keys() == before[2].keys()
