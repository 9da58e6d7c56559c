"""Optimizer steps as seen from outside, and torch left as it was."""

import gc
import inspect
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stepscope.record.optimizers import OptimizerWatch


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


def test_closing_leaves_classes_that_were_used_meanwhile_as_torch_makes_them():
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    original = vars(Mine)["step"]
    watch = OptimizerWatch(lambda _: None)
    Mine([parameter()], lr=0.1)
    watch.close()

    assert inspect.unwrap(Mine.step, stop=lambda step: step is original) is original
    assert Mine.step.__wrapped__ is original, "only torch's own wrapper is left"
    before = Mine.step
    Mine([parameter()], lr=0.1)
    assert Mine.step is before, "torch does not wrap it again"


def updating_in_hooks(weights):
    """An optimizer for each weight, which steps as soon as its gradient is there."""
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in weights}
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    return list(optimizers.values())


def test_steps_within_a_backward_pass_count_once_when_it_is_over(seen):
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizers = updating_in_hooks(weights)
    within = []
    weights[0].register_post_accumulate_grad_hook(lambda weight: within.append(len(seen)))
    for _ in range(4):  # the first pass is not reported
        sum(weights).sum().backward()

    assert within == [0, 0, 1, 2]
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0] in optimizers


def test_each_model_updated_in_its_backward_pass_has_steps_of_its_own(seen):
    critic, generator = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    of_critic, of_generator = updating_in_hooks([critic, generator])
    for _ in range(3):
        critic.sum().backward()
        generator.sum().backward()

    assert seen == [of_generator, *[of_critic, of_generator] * 2]


def test_a_backward_pass_that_fails_reports_no_steps_later(seen):
    weight, other = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    updating_in_hooks([weight])
    weight.sum().backward()
    other.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (weight * 2 + other).sum().backward()
    (torch.ones(2, requires_grad=True)).sum().backward()

    assert seen == []


def test_passes_are_no_longer_watched_after_closing():
    before = torch.autograd._engine_run_backward
    watch = OptimizerWatch(lambda optimizer: None)
    weight = nn.Parameter(torch.ones(2))
    updating_in_hooks([weight])
    weight.sum().backward()
    assert torch.autograd._engine_run_backward is not before
    watch.close()
    assert torch.autograd._engine_run_backward is before


def test_a_step_that_a_graph_captures_is_none(seen, monkeypatch):
    """It runs later; a profiler that starts or stops now would end the capture with an error."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: captures)
    monkeypatch.setattr(torch, "cuda", cuda)
    for captures in (False, True, False):  # noqa: B007, `cuda` looks at it
        optimizer.step()
    assert seen == [optimizer] * 2


def test_after_it_is_closed_no_optimizer_is_kept():
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces its `step`
    watch = OptimizerWatch(lambda _: None)
    optimizer.step()
    watch.close()
    reference = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert reference() is None
