"""The table of operations."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.annotate import annotate
from stepscope.facts.roofline.operator_work import with_operations
from stepscope.testing import drawn_trace

STEP = """
    main     |  0 60 | ProfilerStep#0
    main     | 10 20 | aten::mm  | Input_Dims=[[8,4],[4,2]] Input_type=["c10::Half","c10::Half"]
    main     | 12 14 | cudaLaunchKernel | corr=1
    main     | 22 30 | aten::add | Input_Dims=[[100],[100]] Input_type=["float","float"]
    main     | 23 25 | cudaLaunchKernel | corr=2
    main     | 32 40 | my::own
    main     | 33 35 | cudaLaunchKernel | corr=3
    stream 7 | 20 30 | hgemm  | corr=1
    stream 7 | 30 40 | add    | corr=2
    stream 7 | 40 50 | my_own | corr=3
"""


def test_each_kernel_has_a_row() -> None:
    trace = with_operations(annotate(drawn_trace(STEP)))
    names = trace.events.text("name")
    assert [
        (names[row["event"]], row["flops"], row["bytes"], row["precision"])
        for row in trace["operations"].rows()
    ] == [
        ("hgemm", 128, 2 * (32 + 8 + 16), "half"),
        ("add", None, 4 * 300, None),
        ("my_own", None, None, None),
    ]


@pytest.mark.parametrize(("sql", "rows"), [("select * from OPERATIONS", 1), ("select 1", 1)])
def test_it_is_filled_for_a_query_that_names_it(sql: str, rows: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9,'
        ' "args": {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]}}]'
    )
    done = CliRunner().invoke(stepscope, ["query", str(path), sql, "--format", "csv"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == rows + 1
    assert ("128" in done.stdout) is ("OPERATIONS" in sql)
