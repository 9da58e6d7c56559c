"""`stepscope analyze`: what is wrong with the step, in sentences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.options import takes_trace
from stepscope.cli.terminal import terminal

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

_LEVELS = ("info", "warning", "critical")


@click.command()
@takes_trace
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("--fail-on", metavar="LEVEL", type=click.Choice(_LEVELS),
              help="End with code 1 on a finding of this level or worse.")  # fmt: skip
@click.option("--rules", "files", metavar="FILE", multiple=True,
              type=click.Path(exists=True, dir_okay=False),
              help="A Python file with rules of your own; it is run.")  # fmt: skip
@click.option("--rank", type=int, help="One rank; by default the one that computes longest.")
def analyze(
    trace: Trace, as_json: bool, fail_on: str | None, files: tuple[str, ...], rank: int | None
) -> None:
    """Tell what is wrong with the training step, what to do, and what that would give back."""
    from stepscope.analyze import RULES, Subject, apply_rules, load_rules

    rules = [*RULES, *(rule for file in files for rule in load_rules(file))]
    subject = Subject(trace, rank)
    findings = apply_rules(subject, rules)
    if as_json:
        echo_json({"findings": [one.to_json() for one in findings]})
    else:
        from stepscope.analyze.text import print_findings

        print_findings(
            terminal(), findings, trace.metadata.source, len(rules), subject.leaves_out_a_step,
            subject.unfolded is not None, subject.is_jax,
        )  # fmt: skip
    worst = max((_LEVELS.index(one.severity) for one in findings), default=-1)
    if fail_on and worst >= _LEVELS.index(fail_on):
        sys.exit(1)
