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
def query(trace: Trace, sql: str, form: str) -> None:
    """Ask the tables of the trace FILE in SQL.

    The tables are described in docs/schema.md; `show tables` lists them and `describe events`
    shows the columns of one.

    \b
    stepscope query run.stepscope "select * from steps"
    """
    from stepscope.cli.rows import FORMATS
    from stepscope.contexts import build_contexts, with_contexts

    if any(name in sql.lower() for name in ("findings", "evidence")):
        from stepscope.analyze import RULES, Subject, apply_rules, with_findings

        subject = Subject(trace)
        trace = with_findings(trace, apply_rules(subject, RULES))
        if subject.contexts is not None:  # whose nodes the evidence names
            trace = with_contexts(trace, subject.contexts)
    if "operations" in sql.lower():
        from stepscope.roofline import with_operations

        trace = with_operations(trace)
    asks_contexts = any(name in sql.lower() for name in ("contexts", "context_metrics"))
    if asks_contexts and not len(trace["contexts"]):
        trace = with_contexts(trace, build_contexts(trace))
    sys.stdout.writelines(f"{line}\n" for line in FORMATS[form](trace.query(sql)))
