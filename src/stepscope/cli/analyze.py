"""`stepscope analyze`: findings on a training step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.cli.json_output import echo_json
from stepscope.cli.many_ranks import focused
from stepscope.cli.options import (
    TraceFile,
    ranks_without_steps,
    say_ranks_without_steps,
    takes_file,
)
from stepscope.cli.terminal import terminal

if TYPE_CHECKING:
    from stepscope.analyze.analysis import Analysis
    from stepscope.ranks.job import JobReport
    from stepscope.trace.trace import Trace

_LEVELS = ("info", "warning", "critical")


@click.command()
@takes_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--fail-on", metavar="LEVEL", type=click.Choice(_LEVELS),
              help="Exit with code 1 on a finding of this level or worse.")  # fmt: skip
@click.option("--rules", "files", metavar="FILE", multiple=True,
              type=click.Path(exists=True, dir_okay=False),
              help="Python file with custom rules (it is executed).")  # fmt: skip
@click.option("--rank", type=int, help="Process rank; by default the one that computes longest.")
@click.option("--all", "every", is_flag=True, help="Show all findings, not only the first five.")
@click.option("--device", metavar="NAME",
              help="The device, if the file does not name it (H100, A100, MI300X, …).")  # fmt: skip
def analyze(
    file: TraceFile,
    as_json: bool,
    fail_on: str | None,
    files: tuple[str, ...],
    rank: int | None,
    every: bool,
    device: str | None,
) -> None:
    """Explain what slows the training step, what to do, and how much time it saves."""
    file, many = focused(file, rank)
    analysis = _analyzed(file, rank, files, device, many.report if many else None)
    if as_json:
        echo_json(analysis.to_json())
    else:
        from stepscope.analyze.findings_text import print_findings

        print_findings(terminal(), analysis, every)
    worst = max((_LEVELS.index(one.severity) for one in analysis.findings), default=-1)
    if fail_on and worst >= _LEVELS.index(fail_on):
        sys.exit(1)


def _analyzed(
    file: TraceFile,
    rank: int | None,
    rules: tuple[str, ...],
    device: str | None,
    job: JobReport | None,
) -> Analysis:
    """The analysis; it is kept if it depends on the file and on nothing else."""
    if not rules and not device and job is None:
        from stepscope.cli.kept_analysis import analysis_of_file

        found = analysis_of_file(file, rank)
        say_ranks_without_steps(file.path, found.ranks_without_steps)
        return found.analysis
    from stepscope.analyze import RULES, RuleContext, load_rules
    from stepscope.analyze.analysis import analysis_of

    trace = file.open()
    say_ranks_without_steps(file.path, ranks_without_steps(trace))
    trace = _with_device(trace, device) if device else trace
    custom = [rule for path in rules for rule in load_rules(path)]
    return analysis_of(RuleContext(trace, rank, job), [*RULES, *custom])


def _with_device(trace: Trace, name: str) -> Trace:
    """The trace with the device named, unless its file names one."""
    from stepscope.annotate.links.launches import device_work
    from stepscope.roofline import known_gpus, rates_of

    rates = rates_of(name)
    if rates is None:
        known = ", ".join(gpu["name"] for gpu in known_gpus())
        raise click.BadParameter(f"unknown device {name!r}; known are {known}",
                                 param_hint="--device")  # fmt: skip
    named = [one["name"] for one in trace.metadata.devices if one.get("name")]
    if named:
        click.echo(f"! --device {name} is ignored: the file names {named[0]}", err=True)
        return trace
    numbers = set(trace["tracks"]["device"][trace.events["track"][device_work(trace)]].tolist())
    recorded = {one.get("id"): one for one in trace.metadata.devices}
    devices = tuple({**recorded.get(at, {}), "id": at, "name": rates["match"]}
                    for at in sorted(numbers))  # fmt: skip
    return trace.with_metadata(devices=devices)
