"""Out-of-memory errors as they are understood, and CUDA's history against a stand-in."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from stepscope.record.memory import memory_recorder
from stepscope.record.memory.out_of_memory import find_out_of_memory, size, verdict
from stepscope.record.module_registry import ModuleRegistry

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.11 GiB of "
    "which 1.02 GiB is free. Process 1 has 78.08 GiB memory in use."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("text", "requested", "device"),
    [
        (CUDA, 5 << 29, "cuda:1"),
        (CPU, 4096, "cpu"),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", 20 << 20, "cuda:0"),
    ],
)
def test_messages_of_pytorch_are_understood(text: str, requested: int, device: str) -> None:
    named = type("OutOfMemoryError", (RuntimeError,), {}) if "CUDA" in text else RuntimeError
    failed = find_out_of_memory(named(text))
    assert failed is not None
    assert (failed.requested_bytes, failed.device) == (requested, device)


class Odd(Exception):
    """Of the program: it notices who asks for its text."""

    def __str__(self) -> str:
        raise AssertionError


@pytest.mark.parametrize("error", [ValueError("no memory of that"), RuntimeError("shape mismatch"), Odd()])
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    assert find_out_of_memory(error) is None


def test_the_verdict_names_the_line_and_what_is_kept() -> None:
    try:
        raise RuntimeError(CPU)
    except RuntimeError as error:
        failed = find_out_of_memory(error)
    assert failed is not None
    kept = [
        {"kind": kind, "device": "cpu", "bytes": held}
        for kind, held in (
            ("parameter", 1 << 20),
            ("optimizer_state", 2 << 20),
            ("gradient", 1 << 19),
            ("parameter", 1 << 20),
        )
    ]
    kept.append({"kind": "parameter", "device": "cuda:0", "bytes": 1 << 40})
    assert verdict(failed, kept) == (
        f"out of memory on cpu: 4.00 KiB were requested at {__file__}:{failed.line}; kept from "
        "step to step: weights 2.00 MiB, optimizer state 2.00 MiB, gradients 512.00 KiB"
    )


@pytest.mark.parametrize(("amount", "text"), [(12, "12 bytes"), (1536, "1.50 KiB"), (3 << 29, "1.50 GiB")])
def test_sizes(amount: int, text: str) -> None:
    assert size(amount) == text


class FakeCuda:
    """What of torch.cuda the history uses."""

    def __init__(self) -> None:
        self.queued, self.calls = [], []
        self.memory = SimpleNamespace(
            _record_memory_history=lambda **options: self.calls.append(options),
            _dump_snapshot=lambda path: Path(path).write_bytes(b"snapshot"),
        )

    def is_available(self) -> bool:
        raise AssertionError("initializes the driver, which a forked child cannot use then")

    def _lazy_call(self, function: Any) -> None:
        self.queued.append(function)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(memory_recorder, "_cuda", fake)
    return fake


def test_the_history_is_a_ring_that_begins_with_the_first_use_of_cuda(cuda: FakeCuda, tmp_path: Path) -> None:
    history = memory_recorder.CudaHistory()
    assert (cuda.calls, history.has_events) == ([], False)
    cuda.queued[0]()
    (options,) = cuda.calls
    assert options["max_entries"] == 200_000
    assert (options["enabled"], options["stacks"]) == ("all", "python")
    history.write(tmp_path / "snapshot.pickle")
    assert (tmp_path / "snapshot.pickle").read_bytes() == b"snapshot"
    history.close()
    assert cuda.calls[-1] == {"enabled": None}
    assert not history.has_events


def test_a_closed_history_does_not_begin(cuda: FakeCuda) -> None:
    history = memory_recorder.CudaHistory()
    history.close()
    cuda.queued[0]()
    assert cuda.calls == []


def test_a_history_that_cannot_begin_does_not_reach_the_program(cuda: FakeCuda) -> None:
    history = memory_recorder.CudaHistory()
    del cuda.memory._record_memory_history
    cuda.queued[0]()
    assert not history.has_events


def test_what_has_no_storage_or_gradient_of_its_own_is_left_out_without_a_warning() -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 2), "lazy": torch.nn.LazyLinear(2)})
    model["used"].register_buffer("kept", model["used"].weight * 2)  # has a gradient function
    registry = ModuleRegistry()
    registry.add_root(model, "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = memory_recorder.list_storages(registry, [], {})
    assert [(row["path"], row["name"], row["bytes"]) for row in rows] == [
        ("used", "weight", 16),
        ("used", "bias", 8),
        ("used", "kept", 16),
    ]
