"""`stepscope analyze`: findings on a training step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.base.plugins import plugin_names
from stepscope.faces.terminal.options import takes_rules
from stepscope.faces.terminal.output import echo_json, terminal
from stepscope.faces.terminal.source import InputFile, takes_file

if TYPE_CHECKING:
    from stepscope.analyze.analysis import Analysis
    from stepscope.models.ranks.job import JobReport
    from stepscope.trace.trace import Trace

_LEVELS = ("info", "warning", "critical")
_PACKAGES = (
    *("analyze", "graph", "facts/contexts", "facts/roofline", "facts/summary"),
    *("models/calibration", "models/memory", "models/whatif"),
)


@click.command()
@takes_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--fail-on",
    metavar="LEVEL",
    type=click.Choice(_LEVELS),
    help="Exit with code 1 on a finding of this level or worse.",
)
@takes_rules
@click.option("--rank", type=int, help="Process rank; by default the slowest.")
@click.option("--all", "every", is_flag=True, help="Show all findings, not only the first five.")
@click.option(
    "--device", metavar="NAME", help="The device, if the file does not name it (H100, A100, MI300X, …)."
)
def analyze(
    file: InputFile,
    as_json: bool,
    fail_on: str | None,
    rules: tuple[str, ...],
    rank: int | None,
    every: bool,
    device: str | None,
) -> None:
    """Explain what slows the training step, what to do, and how much time it saves."""
    file, many = file.focused()
    analysis = analysis_of_file(file, rank, many.report if many else None, rules, device)
    if as_json:
        echo_json(analysis.to_json())
    else:
        from stepscope.analyze.findings_text import print_findings

        print_findings(terminal(), analysis, every)
    worst = max((_LEVELS.index(finding.severity) for finding in analysis.findings), default=-1)
    if fail_on and worst >= _LEVELS.index(fail_on):
        sys.exit(1)


def analysis_of_file(
    file: InputFile,
    rank: int | None,
    job: JobReport | None,
    rules: tuple[str, ...] = (),
    device: str | None = None,
) -> Analysis:
    """The analysis; kept in the cache unless it is of one rank of many, by rules from elsewhere, or for a
    named device."""
    from stepscope.analyze.analysis import Analysis
    from stepscope.faces.terminal.answers import answer_of, calibrations

    def made(trace: Trace) -> Analysis:
        from stepscope.analyze import RULES, RuleContext, load_rules
        from stepscope.analyze.analysis import analysis_of
        from stepscope.facts.roofline.rates import with_device

        custom = [rule for path in rules for rule in load_rules(path)]
        context = RuleContext(with_device(trace, device) if device else trace, rank, job)
        return analysis_of(context, [*RULES, *custom])

    if job or rules or device or plugin_names("rules"):
        return made(file.load())
    return answer_of(file, "analysis", Analysis, _PACKAGES, (rank, calibrations()), made)
