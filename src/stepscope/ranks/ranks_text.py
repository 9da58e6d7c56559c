"""A job as text for a terminal, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.ranks.job import JobReport
from stepscope.ranks.map_ranks import RankResult
from stepscope.ranks.ranks_tables import print_groups, print_ranks
from stepscope.ranks.stragglers import stage_in_words
from stepscope.summary.job_findings import NONE_IS_SLOW
from stepscope.summary.numbers import ms, percent, plural

if TYPE_CHECKING:
    from rich.console import Console

_MOST_STRAGGLERS = 3
_MOST_ERRORS = 5
_MOST_SHARES = 4


def print_job(console: Console, report: JobReport, failed: Sequence[RankResult]) -> None:
    """Print a job: the verdict, the stragglers, and the ranks that work longest."""
    from rich.text import Text

    for result in failed[:_MOST_ERRORS]:
        console.print(Text(f"! {result.error}"), soft_wrap=True)
    if len(failed) > _MOST_ERRORS:
        console.print(f"! and {len(failed) - _MOST_ERRORS} more files that cannot be read")
    head = f"{plural(report.ranks, 'rank')} · {plural(report.steps, 'step')}"
    console.print(Text(head, "bold"))
    console.print()
    console.print(Text(f"Step {ms(report.step_ms)} ms", "bold"), _balance(report))
    _print_stragglers(console, report)
    _print_slowdown(console, report)
    _print_whatifs(console, report)
    print_ranks(console, report)
    print_groups(console, report.groups)


def _print_stragglers(console: Console, report: JobReport) -> None:
    """The slow ranks and links, the most expensive first, or that there are none."""
    from rich.text import Text

    if not report.stragglers:
        console.print(Text(f"▶ {verdict(report)}", "bold yellow"), soft_wrap=True)
    for one in report.stragglers[:_MOST_STRAGGLERS]:
        cost = f"  costs the job {ms(one.cost_ms)} ms per step, {_share(one.cost_ms, report)}"
        console.print(Text(f"▶ {one.sentence}", "bold yellow"), soft_wrap=True)
        console.print(Text(cost, "dim"))
    if len(report.stragglers) > _MOST_STRAGGLERS:
        more = len(report.stragglers) - _MOST_STRAGGLERS
        console.print(Text(f"  … {more} more (--json has all)", "dim"))


def verdict(report: JobReport) -> str:
    """The most expensive straggler, or that there is none."""
    if report.ranks == 1:
        return "One rank: there is none to compare it with."
    if not report.stragglers:
        return NONE_IS_SLOW.capitalize()
    first = report.stragglers[0]
    return f"{first.sentence.rstrip('.')}: {_share(first.cost_ms, report)}."


def _print_slowdown(console: Console, report: JobReport) -> None:
    """What imbalance costs, and the parts that explain most of it."""
    lost = report.slowdown
    if lost is None or not lost.shares:
        return
    parts = ", ".join(
        f"{one.part} {stage_in_words(one.which)}".rstrip() + f" {percent(one.share)}"
        for one in lost.shares[:_MOST_SHARES]
    )
    console.print(
        f"\nImbalance makes the step {lost.ratio:.2f} times as long (simulated: "
        f"{ms(lost.replayed_ms)} ms, in balance {ms(lost.balanced_ms)} ms). Each part alone "
        f"explains: {parts}", soft_wrap=True,
    )  # fmt: skip


def _print_whatifs(console: Console, report: JobReport) -> None:
    answers = ", ".join(
        f"{change} {ms(step_ms)} ms ({report.replayed_ms / step_ms:.2f}x)"
        for change, step_ms in report.whatifs.items()
    )
    if answers:
        console.print(f"What if: {answers}", soft_wrap=True)


def _balance(report: JobReport) -> str:
    return (
        f"  own work {ms(report.work_ms)} ms on the median rank, "
        f"{ms(report.slowest_ms)} ms on the slowest of each step"
    )


def _share(cost_ms: float, report: JobReport) -> str:
    return f"{percent(cost_ms / max(report.step_ms, 1e-9))} of the step"
