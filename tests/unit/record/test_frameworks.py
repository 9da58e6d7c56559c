"""What a capture says of the framework, and of the instructions that it uses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stepscope.record.manifest import describe_framework


@pytest.mark.parametrize(
    ("backends", "capability"),
    [
        (SimpleNamespace(cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2")), "AVX2"),
        (SimpleNamespace(), None),  # older
    ],
)
def test_the_capability_is_what_pytorch_says(
    backends: SimpleNamespace, capability: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(
        __version__="2.13.0",
        get_num_threads=lambda: 4,
        cuda=SimpleNamespace(is_initialized=lambda: False),  # is not asked whether it is available
        backends=backends,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert describe_framework("pytorch")["cpu_capability"] == capability


def test_the_installed_pytorch_says_both() -> None:
    torch = pytest.importorskip("torch")
    assert describe_framework("pytorch")["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    before = torch.get_float32_matmul_precision()
    for precision in ("high", before):
        torch.set_float32_matmul_precision(precision)
        assert describe_framework("pytorch")["matmul_precision"] == precision
