"""Decoding that computes all tokens again for each new one, drawn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from drawn_findings import A100, found

from stepscope.analyze import Finding

RULE = "missing_kv_cache"


def product(at: int, shape: str, weight: int = 64, more: str = "") -> str:
    """A product of 20 us by a weight of so many columns."""
    dims = f"[[{shape},64],[{weight},64],[]]"
    return f"main | {at} {at + 20} | aten::linear | Input__Dims={dims} {more}".replace("__", "_")


def decoding(shapes: Sequence[str], joined: str = "", more: str = "") -> str:
    """A call of 60 us with two products for each shape, and 40 us until the next."""
    lines = [f"main | 0 {100 * len(shapes)} | ProfilerStep#0"]
    for number, shape in enumerate(shapes):
        at = 100 * number + 10
        lines += [product(at, shape, more=more), product(at + 30, shape, 256, more)]
        if joined:
            dims = joined.format(shape)
            lines.append(f"main | {at + 60} {at + 70} | aten::cat | Input_Dims=[{dims},[]]")
    return "\n".join(lines)


def growing(count: int, by: int = 1, first: int = 10) -> list[str]:
    return [f"1,{first + by * number}" for number in range(count)]


def finding_of(text: str, **metadata: object) -> Finding | None:
    return found(RULE, text, **metadata)


def test_eight_calls_whose_input_grows_by_one_token() -> None:
    finding = finding_of(decoding(growing(8)))
    assert finding is not None
    assert "Its input grows from 10 to 17 rows in 8 calls" in finding.what
    assert "use_cache=True" in finding.advice
    # 20 us each, with the Python between: 10 us in the call, and at most 20 us after it.
    repeated = sum(1 - 1 / size for size in range(10, 18)) / 8
    assert finding.gain.ms == pytest.approx((8 * (30 + 40) - 20) / 1000 * repeated)


def test_three_calls_are_enough_where_a_token_is_joined_between() -> None:
    joined = "[[{}],[1,1]]"
    finding = finding_of(decoding(growing(3), joined))
    assert finding is not None
    assert "in 3 calls" in finding.what
    assert finding_of(decoding(growing(2), joined)) is None
    assert finding_of(decoding(growing(7))) is None


def test_each_prompt_is_a_series_of_its_own() -> None:
    finding = finding_of(decoding([*growing(9), *growing(12)]))
    assert finding is not None
    assert "from 10 to 21 rows in 12 calls" in finding.what
    assert sum(place.count for place in finding.evidence) == 2 * (9 + 12)


def test_batch_and_length_may_be_one_size() -> None:
    finding = finding_of(decoding([f"{2 * (9 + n)}" for n in range(8)]))
    assert finding is not None
    assert "from 18 to 32 rows" in finding.what
    joined = decoding(["18", "20", "22"], "[[2,{}],[2,1]]")
    for rows, length in ((18, 9), (20, 10), (22, 11)):
        joined = joined.replace(f"[2,{rows}]", f"[2,{length}]")
    assert finding_of(joined) is not None  # a model of transformers
    assert finding_of(decoding([f"{3 + 2 * n}" for n in range(8)])) is None


def test_on_a_device_the_longer_side_counts() -> None:
    kernels = "\n".join(
        f"main | {100 * n + 12} {100 * n + 14} | cudaLaunchKernel | corr={n}\n"
        f"stream 7 | {100 * n + 15} {100 * n + 105} | gemm | corr={n}"
        for n in range(8)
    )
    finding = finding_of(f"{decoding(growing(8))}\n{kernels}", devices=A100)
    assert finding is not None
    repeated = sum(1 - 1 / size for size in range(10, 18)) / 8
    assert finding.gain.ms == pytest.approx(8 * 0.09 * repeated)


BACKWARD = "main | 790 799 | autograd::engine::evaluate_function: MmBackward0 | seq=3 fwd=1"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(decoding(["1,10"] * 20), id="equal inputs"),
        pytest.param(decoding(["1,1"] * 20, "[[1,4,10,8],[1,4,1,8]]"), id="a KV cache"),
        pytest.param(decoding(growing(20, by=8)), id="lengths in steps of 8"),
        pytest.param(decoding([*growing(6), "1,30", *growing(6)]), id="broken rows"),
        pytest.param(decoding(growing(20)).replace("Input_Dims", "Other"), id="unknown shapes"),
        pytest.param(f"{decoding(growing(8), more='seq=3')}\n{BACKWARD}", id="training"),
        pytest.param(decoding(growing(8)).replace("0 800 |", "0 80000 |"), id="a small part of the step"),
    ],
)
def test_else_it_is_silent(text: str) -> None:
    assert finding_of(text) is None


def test_most_of_the_products_have_to_grow() -> None:
    """A bias computed for all positions grows with a KV cache too."""
    lines = ["main | 0 900 | ProfilerStep#0"]
    for number, shape in enumerate(growing(8)):
        at = 100 * number + 10
        lines += [product(at, shape), product(at + 30, "1,1", 128), product(at + 52, "1,1", 256)]
        lines.append(product(at + 74, shape, 32).replace(f"{at + 94}", f"{at + 75}"))
    assert finding_of("\n".join(lines)) is None
