"""Findings for a terminal: the worst first, each with what, what to do, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analyze.finding import Finding, Place
from stepscope.analyze.places import plain_name
from stepscope.annotate.kernel_names import short_kernel
from stepscope.summary.numbers import ms, percent, plural

_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_PLACES = 4
_NAME_WIDTH = 48


def print_findings(
    console: Console, findings: Sequence[Finding], source: str, rules: int, left_out: bool = False,
    of_tree: bool = False, of_jax: bool = False,
) -> None:  # fmt: skip
    """Print findings.

    Args:
        console: where to; its width decides where lines break.
        findings: the worst first.
        source: of the trace.
        rules: how many rules were applied.
        left_out: whether a first step that warms up was left out.
        of_tree: whether they are of a calling-context tree, which knows operators alone.
        of_jax: whether they are of JAX, whose lines `stepscope run` does not record.
    """
    parts = _parts(findings, source, rules, left_out, of_tree)
    hint = () if of_jax else _hint(findings)
    console.print(Group(*parts, *hint), highlight=False)


def _parts(
    findings: Sequence[Finding], source: str, rules: int, left_out: bool, of_tree: bool
) -> Iterator[RenderableType]:
    head = Text.assemble((source.rpartition("/")[2], "bold"))
    head.append(f"   {plural(len(findings), 'finding')} · {plural(rules, 'rule')}", "dim")
    if findings:
        step = f"{ms(findings[0].step_ms)} ms"
        head.append(f" · {step} of operators a step" if of_tree else f" · a step of {step}", "dim")
        head.append(" (without the first, which warms up)" if left_out else "", "dim")
    yield head
    if not findings:
        yield Text("\nNo rule found what would give back 1 % of the step or more.", "dim")
    for finding in findings:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=8)
        table.add_column()
        table.add_row(Text(finding.severity, _STYLE[finding.severity]), Group(*_finding(finding)))
        yield Padding(table, (1, 0, 0, 0))
    if findings:
        yield Text("\nGains do not add up: each is of that change alone.", "dim")


def _hint(findings: Sequence[Finding]) -> Iterator[Text]:
    """How to get lines, where none is told."""
    if findings and not any(place.line for one in findings for place in one.evidence):
        yield Text("For the lines of these calls record with `stepscope run --contexts`.", "dim")


def _finding(finding: Finding) -> Iterator[RenderableType]:
    yield Text(finding.what, "bold").append(f"  {finding.rule}", "not bold dim")
    yield Text(finding.advice)
    for place in finding.evidence[:_PLACES]:
        yield Padding(_place(place), (0, 0, 0, 2))
    if (rest := len(finding.evidence) - _PLACES) > 0:
        yield Text(f"  … and in {plural(rest, 'more place')}", "dim")
    yield _gain(finding)


def _gain(finding: Finding) -> Text:
    gain = finding.gain
    text = Text("could give back ", "dim").append(f"{ms(gain.ms)} ms", "green")
    text.append(f", {percent(finding.share)} of the step", "dim")
    if gain.range_ms:
        low, high = map(ms, gain.range_ms)
        text.append(f" ({low} to {high} ms)" if low != high else "", "dim")
    return text.append(f": {gain.words}", "dim")


def _place(place: Place) -> Text:
    text = Text(short_kernel(plain_name(place.name), _NAME_WIDTH), "cyan")
    text.append(f" × {place.count:.4g}, {ms(place.ms)} ms a step", "dim")
    text.append(f", {place.stage.replace('_', ' ')}" if place.stage else "", "dim")
    return text.append(f"  {place.where}" if place.where else "")
