from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stepscope.errors import QueryError, TraceError
from stepscope.faces.terminal.query import as_csv
from stepscope.testing import drawn_trace
from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.query import KINDS, NO_FILES, answer_of, is_number, plain_values
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.trace import Trace

TRACE = drawn_trace(
    """
    main     |  0 9 | aten::mm | seq=4 shape=[2,3]
    main     |  2 4 | aten::empty
    stream 7 |  5 8 | sgemm | corr=7
    """
)


def rows(sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in TRACE.query(sql).to_pylist()]


def test_text_numbers_and_null() -> None:
    assert rows("select id, parent, name, category, sequence, stage from events") == [
        (0, None, "aten::mm", "cpu_op", 4, None),
        (1, 0, "aten::empty", "cpu_op", None, None),
        (2, None, "sgemm", "kernel", None, None),
    ]


def test_the_arguments_are_a_table() -> None:
    sql = "select event, json->>'$.shape' from Arguments where json like '%shape%'"
    assert rows(sql) == [(0, "[2,3]")]


def test_arguments_are_of_the_events_that_are_left_and_of_valid_text() -> None:
    texts = [b'{"a": "\xff"}', b'{"a": 1}', b'{"a": "\xc3\xbc"}', b"{}"]
    arguments = Arguments((ArgumentBlock.of([0, 1, 2, 9], texts),))
    trace = Trace({"events": TRACE.events.take([2, 0])}, TRACE.metadata, arguments)
    found = trace.query("from arguments").to_pylist()
    assert found == [{"event": 1, "json": '{"a": "�"}'}, {"event": 0, "json": '{"a": "ü"}'}]


def test_a_result_is_cut_after_one_row_more() -> None:
    counts = [answer_of("from range(10)", lambda connection: None, most_rows=most) for most in (0, 3)]
    assert [table.num_rows for table in counts] == [10, 4]


def test_too_little_memory_is_told_in_the_database_s_words() -> None:
    config = {**NO_FILES, "memory_limit": "10MB"}
    with pytest.raises(QueryError, match=r"(?s)^Out of Memory(?!.*show tables)"):
        answer_of("select list(n) from range(3000000) as a(n)", lambda connection: None, config)


@pytest.mark.parametrize(
    ("message", "raised"), [("Query interrupted", KeyboardInterrupt), ("Broken", RuntimeError)]
)
def test_an_interrupt_as_tables_are_registered_is_one(message: str, raised: type[BaseException]) -> None:
    def register(connection: object) -> None:
        raise RuntimeError(message)

    with pytest.raises(raised):
        answer_of("select 1", register)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([Decimal("12"), Decimal("1.5"), None]), [12, 1.5, None]),
        (pa.array([1, None]), [1, None]),
        (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
    ],
)
def test_values_of_a_result_are_those_of_python(column: pa.Array, values: list[object]) -> None:
    found = plain_values(column, "n")
    assert (found, [type(value) for value in found]) == (values, [type(value) for value in values])


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [
        *((kind, True) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(9))),
        *((kind, False) for kind in (pa.string(), pa.bool_(), pa.list_(pa.int8()), pa.date32())),
    ],
)
def test_numbers_are_told_from_others(kind: pa.DataType, is_one: bool) -> None:
    assert is_number(kind) is is_one


def test_numbers_are_called_as_numpy_calls_them() -> None:
    trace = Trace({})
    columns = [(table, column) for table in trace.tables.values() for column in table.schema.columns]
    found = {column.kind: table[column.name].dtype.name for table, column in columns if column.kind != "text"}
    assert {**found, "text": "text"} == KINDS


def test_a_trace_without_steps_has_no_findings() -> None:
    assert rows("select count(*) from findings") == rows("select count(*) from evidence") == [(0,)]
    assert rows("explain select 1")[0][0] == "physical_plan"


def test_every_table_and_column_of_the_schema_is_there() -> None:
    for name, schema in SCHEMAS.items():
        columns = [row[0] for row in rows(f"describe {name}")]
        assert columns == [column.name for column in schema.columns]


@pytest.mark.parametrize(
    "sql",
    [
        "drop table events",
        "delete from events",
        "create table mine as select 1",
        "select 1; select 2",
        "set memory_limit = '1GB'",
        "attach 'x.db'",
        "copy events to 'x.csv'",
        "install httpfs",
        "",
    ],
)
def test_anything_but_reading_is_refused(sql: str) -> None:
    with pytest.raises(QueryError, match="expected one reading statement"):
        TRACE.query(sql)


def test_files_and_this_process_are_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(QueryError, match="disabled"):
        TRACE.query(f"select * from '{tmp_path}/secret.csv'")
    local_table = TRACE.query("select 1 as a")
    assert local_table.num_rows == 1
    with pytest.raises(QueryError, match="local_table does not exist"):
        TRACE.query("select * from local_table")


def test_a_mistake_is_told_in_the_database_s_words() -> None:
    with pytest.raises(QueryError, match=r'"qqq" not found.*`show tables` lists the tables'):
        TRACE.query("select qqq from events")
    with pytest.raises(QueryError, match=r"(?s)syntax error.*\nLINE 1: selec 1\n *\^"):
        TRACE.query("selec 1")


def test_a_misspelled_column_is_told_with_the_one_that_was_meant() -> None:
    for sql in ("select nam from events", "select e.name, nam from events e"):
        with pytest.raises(QueryError, match=r"^there is no column 'nam'; did you mean name\?$"):
            TRACE.query(sql)
    with pytest.raises(KeyError, match=r"events has no column 'nam'; did you mean name\?"):
        TRACE["events"]["nam"]
    with pytest.raises(KeyError, match=r"events has no column 'stagge'; did you mean stage\?"):
        TRACE["events"].text("stagge")
    with pytest.raises(TraceError, match=r"no table 'event'; did you mean events\?"):
        TRACE["event"]


# The oldest allowed pyarrow calls a function that the newest pandas deprecates.
@pytest.mark.filterwarnings("ignore:make_block is deprecated")
def test_pandas_gets_null_as_null() -> None:
    pytest.importorskip("pandas")
    frame = TRACE.to_pandas("events")
    assert frame["parent"].isna().tolist() == [True, False, True]
    assert frame["name"].tolist() == ["aten::mm", "aten::empty", "sgemm"]


def test_a_query_writes_nothing_to_disk() -> None:
    found = TRACE.query("select current_setting('temp_directory') as folder")
    assert found["folder"].to_pylist() == [""]


def test_a_long_query_ends_with_ctrl_c() -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        TRACE.query("select sum(sin(n)) from range(1000000000000) as many(n)")


def test_nanoseconds_are_refused_in_one_line_where_python_has_none() -> None:
    """Pandas has them, and Arrow uses it where it is installed."""
    code = """if True:
        import sys
        class NoPandas:
            def find_spec(name, *_):
                if name == "pandas":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, NoPandas)
        import pyarrow as pa
        from stepscope.errors import QueryError
        from stepscope.trace.query import plain_values
        for kind in (pa.timestamp("ns"), pa.time64("ns")):
            try:
                plain_values(pa.array([71_189_000_000_001], kind), "when")
            except QueryError as error:
                print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = "the column when holds nanoseconds; select it as text, with CAST(… AS VARCHAR)"
    assert done.stdout.splitlines() == [line, line]


@pytest.mark.parametrize("value", ["date '290000-01-01'", "'-infinity'::timestamp"])
def test_a_date_that_python_has_not_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(QueryError, match="the column when holds a date outside the years 1 to"):
        list(as_csv(TRACE.query(f'select {value} as "when"')))
