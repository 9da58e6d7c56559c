"""What `verify` applies: a class for each change, two of them on a small model."""

from __future__ import annotations

import pytest

from stepscope.models.verify.verify import verifiable_changes

torch = pytest.importorskip("torch")

from stepscope.record.applied import CHANGES  # noqa: E402 - it imports torch


def test_each_change_that_verify_offers_has_its_class() -> None:
    assert {*verifiable_changes()} == {*CHANGES}


@pytest.fixture
def module_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of modules are put back after the test."""
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)


def is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.usefixtures("module_calls")
def test_filters_and_images_have_their_channels_last() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    seen = []
    model.register_forward_hook(lambda _module, images, result: seen.append((images[0], result)))
    applied = CHANGES["channels_last"]()
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(is_channels_last(tensor) for pair in seen for tensor in pair)
    assert is_channels_last(model[0].weight)
    assert applied.evidence() == {"count": 2, "models": 1}


@pytest.mark.usefixtures("module_calls")
def test_lazy_and_other_filters_stay_until_they_have_a_size() -> None:
    model = torch.nn.Sequential(torch.nn.LazyConv2d(4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2))
    applied = CHANGES["channels_last"]()
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8))
    assert is_channels_last(model[0].weight)
    assert applied.evidence() == {"count": 2, "models": 1}


@pytest.mark.usefixtures("module_calls")
def test_a_model_without_images_shows_that_nothing_changed() -> None:
    applied = CHANGES["channels_last"]()
    torch.nn.Linear(3, 2)(torch.randn(4, 3))
    assert applied.evidence()["count"] == 0


def test_cudnn_times_its_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    applied = CHANGES["cudnn_benchmark"]()
    assert torch.backends.cudnn.benchmark
    assert applied.evidence()["count"] == int(torch.cuda.is_available())
