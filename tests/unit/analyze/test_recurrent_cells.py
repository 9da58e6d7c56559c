"""Recurrent cells that Python calls once per element, drawn."""

from __future__ import annotations

import pytest
from drawn_findings import A100, found

CELL = """
    main | {a} {b} | {name} | seq={n}
    main | {c} {d} | autograd::engine::evaluate_function: AddmmBackward0 | seq={n} fwd=1
"""


def cells(name: str, count: int = 20, around: str = "") -> str:
    """A step of 1 ms that calls a cell of 10 us several times; the backward of each takes 20 us."""
    lines = ["main | 0 1000 | ProfilerStep#0", around]
    for n in range(count):
        at, back = 10 + 15 * n, 500 + 20 * n
        lines.append(CELL.format(a=at, b=at + 10, c=back, d=back + 20, n=n, name=name))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("aten::lstm_cell", "nn.LSTM"),
        ("aten::gru_cell", "nn.GRU"),
        ("aten::rnn_tanh_cell", "nn.RNN"),
        ("aten::rnn_relu_cell", "nn.RNN"),
    ],
)
def test_the_layer_for_whole_sequences_is_named(name: str, layer: str) -> None:
    finding = found("recurrent_loop", cells(name))
    assert finding is not None
    assert finding.what == (
        "A recurrent cell runs 20 times per step, once per sequence element. It takes 0.715 ms with "
        "its backward pass."
    )
    assert f"to {layer} instead" in finding.advice
    assert finding.severity == "warning"  # its next input may depend on its last output


def test_the_gain_counts_backward_and_the_python_between_two_calls() -> None:
    finding = found("recurrent_loop", cells("aten::lstm_cell"))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.02 * 20 + 0.015 * 19 + 0.03)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(cells("aten::lstm_cell", count=15), id="a few calls"),
        pytest.param(cells("aten::linear"), id="other operators"),
        pytest.param(cells("aten::lstm_cell").replace("0 1000 |", "0 100000 |"), id="a small share"),
    ],
)
def test_else_it_is_silent(text: str) -> None:
    assert found("recurrent_loop", text) is None


def test_on_a_device_the_longer_side_counts() -> None:
    kernel = "main | 11 12 | cudaLaunchKernel | corr=1\nstream 7 | 20 950 | lstm | corr=1"
    finding = found("recurrent_loop", f"{cells('aten::lstm_cell')}\n{kernel}", devices=A100)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.93)
