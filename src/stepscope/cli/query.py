"""`stepscope query`: SQL over the tables of a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import takes_trace

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@click.command()
@takes_trace
@click.argument("sql")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table",
              show_default=True, help="How to write the rows.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Short for --format json.")
def query(trace: Trace, sql: str, form: str) -> None:
    """Run SQL on the tables of the trace FILE.

    The tables are described in docs/reference/schema.md; `show tables` lists them and
    `describe events` shows the columns of one.

    \b
    stepscope query run.stepscope "select * from steps"
    """
    from stepscope.cli.row_text import FORMATS

    sys.stdout.writelines(f"{line}\n" for line in FORMATS[form](trace.query(sql)))
