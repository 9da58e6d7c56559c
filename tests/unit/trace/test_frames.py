"""A table as a data frame of the libraries that people use."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

from stepscope.testing import drawn_trace

TRACE = drawn_trace("""
    main     | 0  9 | aten::mm | seq=1
    main     | 1  2 | aten::empty
    stream 7 | 3  8 | sgemm
""")
NAMES = ["aten::mm", "aten::empty", "sgemm"]
EVENTS = TRACE["events"]


def test_arrow_has_every_column_and_null_as_null() -> None:
    table = EVENTS.to_arrow()
    assert table.column_names == [column.name for column in EVENTS.schema.columns]
    assert table["name"].to_pylist() == NAMES
    assert table["parent"].to_pylist() == [None, 0, None]


def test_numbers_are_not_copied() -> None:
    duration = EVENTS["duration_ns"]
    buffer = EVENTS.to_arrow()["duration_ns"].chunk(0).buffers()[1]
    assert buffer.address == duration.__array_interface__["data"][0]


def test_libraries_read_it_through_the_interface_of_arrow() -> None:
    assert pa.RecordBatchReader.from_stream(EVENTS).read_all()["duration_ns"].to_pylist() == [
        9000,
        1000,
        5000,
    ]


def test_an_empty_table_has_its_columns() -> None:
    assert TRACE["steps"].to_arrow().num_rows == 0
    assert "start_ns" in TRACE["steps"].to_arrow().column_names


def test_duckdb_relates_it() -> None:
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.from_arrow(EVENTS.to_arrow()).filter("duration_ns > 2000").project("name")
    assert relation.fetchall() == [("aten::mm",), ("sgemm",)]


# The oldest allowed pyarrow calls a function that the newest pandas deprecates.
@pytest.mark.filterwarnings("ignore:make_block is deprecated")
def test_pandas() -> None:
    pytest.importorskip("pandas")
    frame = EVENTS.to_pandas()
    assert frame["name"].tolist() == NAMES
    assert frame["parent"].isna().tolist() == [True, False, True]


def test_polars() -> None:
    pytest.importorskip("polars")
    frame = EVENTS.to_polars()
    assert frame["name"].to_list() == NAMES
    assert frame["parent"].to_list() == [None, 0, None]
    assert frame.filter(frame["duration_ns"] > 2000).height == 2


def test_polars_gets_the_table_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, what it is called with."""
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=lambda table: [table]))
    assert EVENTS.to_polars() == [EVENTS]
