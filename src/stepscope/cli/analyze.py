"""`stepscope analyze`: findings on a training step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stepscope.cli.json_output import echo_json
from stepscope.cli.options import takes_trace
from stepscope.cli.terminal import terminal

if TYPE_CHECKING:
    from stepscope.analyze import Finding, RuleContext
    from stepscope.trace.trace import Trace

_LEVELS = ("info", "warning", "critical")


@click.command()
@takes_trace
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
    trace: Trace,
    as_json: bool,
    fail_on: str | None,
    files: tuple[str, ...],
    rank: int | None,
    every: bool,
    device: str | None,
) -> None:
    """Explain what slows the training step, what to do, and how much time it saves."""
    from stepscope.analyze import RULES, RuleContext, apply_rules, load_rules

    trace = _with_device(trace, device) if device else trace
    rules = [*RULES, *(rule for file in files for rule in load_rules(file))]
    context = RuleContext(trace, rank)
    findings = apply_rules(context, rules)
    if as_json:
        echo_json({"findings": [one.to_json() for one in findings], "notes": list(_notes(context))})
    else:
        _print(context, findings, len(rules), every)
    worst = max((_LEVELS.index(one.severity) for one in findings), default=-1)
    if fail_on and worst >= _LEVELS.index(fail_on):
        sys.exit(1)


def _print(context: RuleContext, findings: list[Finding], rules: int, every: bool) -> None:
    from stepscope.analyze.analysis import combined_gain
    from stepscope.analyze.findings_text import Heading, print_findings

    heading = Heading(
        context.trace.metadata.source,
        rules,
        context.search.excludes_warm_up,
        context.context_trace is not None,
        context.is_jax,
        _notes(context),
    )
    print_findings(
        terminal(), findings, heading, lambda groups: combined_gain(context, groups), every
    )


def _notes(context: RuleContext) -> tuple[str, ...]:
    """What to know about the steps before reading the findings."""
    from stepscope.annotate.steps.step_coverage import coverage_note
    from stepscope.summary.machine_load import load_warning

    trace = context.trace
    notes = (load_warning(trace.metadata.capture), coverage_note(trace, context.rank))
    return tuple(note for note in notes if note)


def _with_device(trace: Trace, name: str) -> Trace:
    """The trace with the device named, unless its file names one."""
    from stepscope.annotate.links.launch_sides import device_work
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
