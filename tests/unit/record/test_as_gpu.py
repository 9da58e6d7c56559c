"""A script as on a GPU: what it sends there stays here, and dropout keeps one byte a value."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

from stepscope.record.batch_size.fake_memory import OnCpu, _attention_of_one_kernel, _dropout


def test_tensors_stay_on_the_cpu() -> None:
    with OnCpu():
        made = torch.ones(2, device="cuda:1")
        sent = [torch.ones(2).cuda(), torch.ones(2).to("cuda"), torch.ones(2).to(torch.device("cuda"))]
        pinned = torch.ones(2, pin_memory=True).pin_memory()
    assert {tensor.device.type for tensor in (made, *sent, pinned)} == {"cpu"}


def test_autocast_keeps_in_fp32_what_it_keeps_on_a_gpu() -> None:
    x = torch.ones(2, 4)
    with OnCpu(), torch.autocast("cpu", dtype=torch.bfloat16):
        half = x @ torch.ones(4, 4)
        kept = (half.pow(2), F.softmax(half, -1), F.layer_norm(half, (4,)), half**2)
    assert half.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_dropout_keeps_a_mask_of_bytes_and_attention_no_scores() -> None:
    kept: list[torch.Tensor] = []
    x = torch.rand(2, 4, 64, 32, requires_grad=True)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _dropout(x, 0.5)
        assert [tensor.dtype for tensor in kept] == [torch.bool]
        _attention_of_one_kernel(x, x, x, None, 0.5, True)
    assert not [tensor for tensor in kept if tensor.shape[-2:] == (64, 64)]


def test_dropout_does_nothing_in_evaluation_and_changes_in_place() -> None:
    x = torch.ones(1000)
    assert _dropout(x, 0.5, False) is x
    assert _dropout(x, 0.5, True, True) is x
    assert 300 < int((x == 0).sum()) < 700
