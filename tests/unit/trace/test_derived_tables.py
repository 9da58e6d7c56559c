"""`Trace.query` computes the tables that a query names, as the command line does."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace import query as derived_tables
from stepscope.trace.trace import Trace

MATRICES = 'Input_Dims=[[64,32],[32,16]] Input_type=["float","float"]'


@pytest.fixture(scope="module")
def trace() -> Trace:
    return annotate(
        drawn_trace(
            "\n".join(
                f"""
                main     | {at}      {at + 990} | ProfilerStep#{step}
                main     | {at + 5}  {at + 20}  | aten::mm | {MATRICES}
                main     | {at + 6}  {at + 9}   | cudaLaunchKernel | corr={step}
                stream 7 | {at + 12} {at + 40}  | sgemm | corr={step}
                main     | {at + 50} {at + 900} | aten::item
                main     | {at + 51} {at + 899} | cudaStreamSynchronize
                """
                for step, at in ((step, step * 1000) for step in range(4))
            )
        ),
        None,
    )


@pytest.mark.parametrize("table", ["operations", "findings", "evidence", "contexts"])
def test_a_query_that_names_a_table_fills_it(trace: Trace, table: str) -> None:
    assert trace.query(f"select count(*) from {table.upper()}")[0][0].as_py() > 0
    assert trace.query(f'with t as (select * from "{table}") from t').num_rows > 0
    assert len(trace[table]) == 0


def test_a_product_has_its_operations(trace: Trace) -> None:
    assert trace.query("select distinct flops from operations")[0].to_pylist() == [2 * 64 * 32 * 16]


@pytest.mark.parametrize(
    ("sql", "with_rows"),
    [
        ("select 1", set()),
        ("show tables", set()),
        ("describe events", {"events"}),
        ("select count(*) from Events join steps using (step)", {"events", "steps"}),
        ("pivot events on category using count(*)", {"events"}),
        ("from query_table('ev' || 'ents')", {"events", "steps", "launches"}),
    ],
)
def test_only_the_tables_that_a_query_names_have_rows(trace: Trace, sql: str, with_rows: set[str]) -> None:
    tables = derived_tables.tables_for(trace, sql)
    assert {name for name in ("events", "steps", "launches") if len(tables[name])} == with_rows
    assert set(tables) >= set(trace.tables)
    assert trace.query(sql).num_rows > 0


def test_other_queries_compute_nothing(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(derived_tables, "import_module", refuse)
    trace.query("select evidence, 'findings' from steps -- operations")
    trace.query("describe events")
