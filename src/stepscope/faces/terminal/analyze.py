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
    job = many.report if many else None
    analysis = (
        _analyzed(file, rank, rules, device, job) if rules or device else analysis_of_file(file, rank, job)
    )
    if as_json:
        echo_json(analysis.to_json())
    else:
        from stepscope.analyze.findings_text import print_findings

        print_findings(terminal(), analysis, every)
    worst = max((_LEVELS.index(finding.severity) for finding in analysis.findings), default=-1)
    if fail_on and worst >= _LEVELS.index(fail_on):
        sys.exit(1)


def analysis_of_file(file: InputFile, rank: int | None, job: JobReport | None) -> Analysis:
    """The analysis by all rules; kept in the cache, but not of many ranks, nor by rules of other packages."""
    if job or plugin_names("rules"):
        return _analyzed(file, rank, (), None, job)
    from stepscope.analyze.analysis import Analysis
    from stepscope.faces.terminal.answers import answer_of, calibrations

    def made(trace: Trace) -> Analysis:
        from stepscope.analyze import RULES, RuleContext
        from stepscope.analyze.analysis import analysis_of

        return analysis_of(RuleContext(trace, rank), RULES)

    return answer_of(file, "analysis", Analysis, _PACKAGES, (rank, calibrations()), made)


def _analyzed(
    file: InputFile, rank: int | None, rules: tuple[str, ...], device: str | None, job: JobReport | None
) -> Analysis:
    """The analysis by custom rules, for a named device, or of one rank of many."""
    from stepscope.analyze import RULES, RuleContext, load_rules
    from stepscope.analyze.analysis import analysis_of
    from stepscope.facts.roofline.rates import with_device

    trace = file.load()
    trace = with_device(trace, device) if device else trace
    custom = [rule for path in rules for rule in load_rules(path)]
    return analysis_of(RuleContext(trace, rank, job), [*RULES, *custom])
