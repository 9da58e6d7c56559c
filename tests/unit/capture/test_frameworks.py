"""What a capture says of the framework, and of the types that the CPU computes fast."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture.frameworks import describe_framework


def torch_with(**operators: Any) -> SimpleNamespace:
    """PyTorch, as far as it is asked."""
    return SimpleNamespace(
        __version__="2.13.0",
        get_num_threads=lambda: 4,
        cuda=SimpleNamespace(is_available=lambda: False),
        ops=SimpleNamespace(mkldnn=SimpleNamespace(**operators)),
    )


def without_onednn() -> bool:
    raise RuntimeError("built without oneDNN")


@pytest.mark.parametrize(
    ("operators", "fast"),
    [
        ({"_is_mkldnn_bf16_supported": lambda: True, "_is_mkldnn_fp16_supported": lambda: False},
         ["BF16"]),
        ({"_is_mkldnn_bf16_supported": lambda: False, "_is_mkldnn_fp16_supported": lambda: False},
         []),
        ({"_is_mkldnn_bf16_supported": without_onednn}, None),
        ({}, None),  # older
    ],
)  # fmt: skip
def test_fast_types_are_those_that_pytorch_names(
    operators: dict[str, Any], fast: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(**operators))
    assert describe_framework("pytorch")["cpu_fast_types"] == fast


def test_the_installed_pytorch_is_understood() -> None:
    pytest.importorskip("torch")
    found = describe_framework("pytorch")
    assert found["framework"] == "pytorch"
    assert set(found["cpu_fast_types"] or []) <= {"BF16", "FP16"}
