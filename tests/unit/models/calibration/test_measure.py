"""Single operators called as recorded in a trace, in 32 and 16 bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch

from stepscope.errors import ChangeError
from stepscope.models.calibration.calibration import (
    Calibration,
    Machine,
    Operator,
    find_operators,
    keep_calibration,
)
from stepscope.models.calibration.measure import fused_steps, measure
from stepscope.models.calibration.measured_inputs import parts_in_turn, prepare
from stepscope.testing import drawn_trace


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads, which measuring changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def signature(name: str, *inputs: tuple[list[int], list[int], str, str]) -> str:
    dims, strides, types, values = zip(*inputs, strict=True)
    return Operator(name, dims, strides, types, values).signature


@pytest.mark.parametrize("elements", [1 << 10, 1 << 20, 3 << 18])
def test_a_part_comes_again_only_after_all_others(elements: int) -> None:
    array = torch.zeros(1 << 22)
    places = [part.storage_offset() for (part,) in islice(parts_in_turn([array], elements), 8)]
    met = places[: places.index(places[0], 1)] if places[0] in places[1:] else places
    assert all(b - a >= elements for a, b in pairwise(met))
    assert len(met) == min(8, len(array) // elements)


MATRIX = ([4, 6], [6, 1], "float", "")
TURNED = ([6, 4], [1, 6], "float", "")
NOTHING = ([], [], "", "")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        signature("mm", MATRIX, TURNED),
        signature("add", MATRIX, MATRIX, ([], [], "Scalar", "1")),  # alpha goes by name
        signature("gelu", MATRIX, NOTHING),  # a text that was not recorded
        signature("sum", MATRIX, ([], [], "ScalarList", "[0]"), ([], [], "Scalar", "True"), NOTHING),
        signature(
            "native_layer_norm",
            MATRIX,
            ([], [], "ScalarList", "[6]"),
            ([6], [1], "float", ""),
            ([6], [1], "float", ""),
            ([], [], "Scalar", "1e-05"),
        ),
        signature("masked_fill", MATRIX, ([4, 6], [6, 1], "bool", ""), ([], [], "Scalar", "-inf")),
    ],
)
def test_an_operator_is_called_as_it_was_recorded(text: str, half: bool) -> None:
    call = prepare(text, half=half)
    assert call is not None
    result = call()
    result = result[0] if isinstance(result, tuple) else result
    assert isinstance(result, torch.Tensor)
    assert result.dtype == (torch.bfloat16 if half else torch.float32)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_recurrent_cell_is_called_as_autocast_of_the_device_calls_it(device: str) -> None:
    """On a CPU it keeps its state in FP32, and elsewhere all is in 16 bits."""
    state, weights = ([4, 6], [6, 1], "float", ""), ([18, 6], [6, 1], "float", "")
    bias = ([18], [1], "float", "")
    with torch.device(device):
        call = prepare(signature("gru_cell", state, state, weights, weights, bias, bias), half=True)
        assert call is not None
        result = call()
    assert isinstance(result, torch.Tensor)
    assert result.dtype == (torch.float32 if device == "cpu" else torch.bfloat16)


def test_impossible_calls_are_none() -> None:
    assert prepare(signature("mm", MATRIX, MATRIX), half=False) is None
    assert prepare(signature("no_such_operator", MATRIX), half=False) is None


def test_an_operator_has_two_times_or_none_for_impossible_calls() -> None:
    good, bad = signature("mm", MATRIX, TURNED), signature("mm", MATRIX, MATRIX)
    facts = json.loads(json.dumps(measure({"threads": 1, "operators": [good, bad], "machine": False})))
    assert facts["torch"] == torch.__version__
    assert facts["operators"][bad] == [None, None]
    assert 0 <= facts["core_share"] <= 1
    assert all(time > 0 for time in facts["operators"][good])


def test_each_fused_optimizer_is_measured_by_tensors_and_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.models.calibration.measure._TENSORS", ((1, 16), (3, 8)))
    rows = fused_steps()
    assert {"Adam", "AdamW", "SGD", "SGD with momentum", "Adagrad"} == set(rows)
    for table in rows.values():
        assert [row[:2] for row in table] == [[1, 16], [3, 24]]
        assert all(row[2].ns > 0 for row in table)


def test_only_outermost_operators_count_and_contain_their_calls() -> None:
    shaped = 'Input_Dims=[[4,6],[6,4]] Input_Strides=[[6,1],[1,6]] Input_type=["float","float"]'
    trace = drawn_trace(f"""
        main |  0 50 | ## forward ##
        main |  5 25 | aten::matmul | {shaped} Concrete_Inputs=["",""]
        main | 10 20 | aten::mm
        main | 30 40 | aten::relu
    """)
    found = find_operators(trace, trace.events.text("category").mask("cpu_op"))
    names = trace.events.text("name")
    assert [names[row] for row in found.rows] == ["aten::matmul", "aten::relu"]
    assert [names[row] for row in range(len(names)) if found.around[row] == 0] == ["aten::matmul", "aten::mm"]
    matmul, relu = found.calls
    assert matmul is not None
    assert matmul.floats == ((4, 6), (6, 4))
    assert relu is None


def test_a_calibration_that_cannot_be_saved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "file" / "cache"))
    calibration = Calibration(Machine("a CPU", 2, "2.13.0", 2), "2026-11-21")
    with pytest.raises(ChangeError, match="cannot save the calibration: Not a directory; set"):
        keep_calibration(calibration)


def test_an_operator_keeps_the_inputs_in_32_bits_that_it_demands() -> None:
    """Attention on a CPU rejects logarithms of sums in 16 bits."""
    heads = ([2, 4, 16, 8], [512, 128, 8, 1], "float", "")
    sums = ([2, 4, 16], [64, 16, 1], "float", "")
    rest = (([], [], "Scalar", "0."), ([], [], "Scalar", "False"), NOTHING, NOTHING)
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    call = prepare(signature(name, *[heads] * 5, sums, *rest), half=True)
    assert call is not None
    gradients = call()
    assert isinstance(gradients, tuple)
    assert {gradient.dtype for gradient in gradients} == {torch.bfloat16}
