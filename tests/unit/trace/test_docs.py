from __future__ import annotations

import sys
from pathlib import Path

import pytest
from schema_docs import page

from stepscope.testing import drawn_trace
from stepscope.trace.query import EXAMPLES
from stepscope.trace.schema import LAUNCHES
from stepscope.trace.table import Table

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "schema.md"
DRAWN = drawn_trace(
    """
    main     | 0 9 | aten::mm | Input_Dims=[[2,3]]
    main     | 2 4 | cudaLaunchKernel | corr=7
    stream 7 | 5 8 | sgemm | corr=7
    """
)
TRACE = DRAWN.with_events(step=[0, 0, 0], stage=["forward"] * 3).with_table(
    Table(LAUNCHES, {"cpu_event": [1], "device_event": [2]})
)
EXPECTED = [[(0, "forward", "sgemm", 0.003, 1)], [("aten::mm", 0.003, 1)], [("[[2,3]]", 1, 0.009)]]


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python scripts/schema_docs.py > docs/reference/schema.md"


@pytest.mark.parametrize(("title", "expected"), [*zip(EXAMPLES, EXPECTED, strict=True)])
def test_the_examples_run(title: str, expected: list[tuple[object, ...]]) -> None:
    found = TRACE.query(EXAMPLES[title]).to_pylist()
    assert [tuple(row.values()) for row in found] == expected
