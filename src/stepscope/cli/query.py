"""`stepscope query`: SQL over the tables of a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import (
    TraceFile,
    ranks_without_steps,
    say_ranks_without_steps,
    takes_file,
)

if TYPE_CHECKING:
    import pyarrow


@click.command()
@takes_file
@click.argument("sql")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table",
              show_default=True, help="How to write the rows.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Short for --format json.")
def query(file: TraceFile, sql: str, form: str) -> None:
    """Run SQL on the tables of the trace FILE, or of all ranks in the folder of `ranks -o`.

    The query `show tables` lists the tables, and `describe events` the columns of one.

    \b
    stepscope query run.stepscope "select * from steps"
    """
    from stepscope.cli.row_text import FORMATS

    sys.stdout.writelines(f"{line}\n" for line in FORMATS[form](_result(file, sql)))


def _result(file: TraceFile, sql: str) -> pyarrow.Table:
    from stepscope.ranks.dataset import is_dataset

    if is_dataset(Path(file.path)):
        from stepscope.ranks.dataset_query import query_dataset

        return query_dataset(Path(file.path), sql)
    trace = file.open()
    say_ranks_without_steps(trace.metadata.source, ranks_without_steps(trace))
    return trace.query(sql)
