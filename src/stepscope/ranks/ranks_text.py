"""A job as text for a terminal, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.ranks.group_table import GroupRow
from stepscope.ranks.job import JobReport
from stepscope.ranks.map_ranks import RankResult
from stepscope.summary.job_findings import NONE_IS_SLOW
from stepscope.summary.numbers import ms, percent, plural

if TYPE_CHECKING:
    from rich.console import Console

_MOST_STRAGGLERS = 3
_MOST_ROWS = 6
_MOST_ERRORS = 5
_MOST_SHARES = 4
_MOST_GROUPS = 5


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
    console.print(Text(f"▶ {verdict(report)}", "bold yellow"), soft_wrap=True)
    for one in report.stragglers[:_MOST_STRAGGLERS]:
        cost = f"  costs the job {ms(one.cost_ms)} ms per step, {_share(one.cost_ms, report)}"
        console.print(Text(f"\n{one.sentence}", "bold"), soft_wrap=True)
        console.print(Text(cost, "dim"))
    if len(report.stragglers) > _MOST_STRAGGLERS:
        more = len(report.stragglers) - _MOST_STRAGGLERS
        console.print(Text(f"  … {more} more (--json has all)", "dim"))
    _print_slowdown(console, report)
    _print_whatifs(console, report)
    _print_ranks(console, report)
    if report.groups:
        _print_groups(console, report.groups)


def verdict(report: JobReport) -> str:
    """The most expensive straggler, or that there is none."""
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
        f"{one.part} {one.which}".rstrip() + f" {percent(one.share)}"
        for one in lost.shares[:_MOST_SHARES]
    )
    console.print(
        f"\nImbalance: {ms(lost.balanced_ms)} ms per step in balance, {ms(lost.replayed_ms)} ms as "
        f"it is ({lost.ratio:.2f}x). Each part alone explains: {parts}", soft_wrap=True,
    )  # fmt: skip


def _print_whatifs(console: Console, report: JobReport) -> None:
    answers = ", ".join(
        f"{change} {ms(step_ms)} ms ({report.replayed_ms / step_ms:.2f}x)"
        for change, step_ms in report.whatifs.items()
    )
    if answers:
        console.print(f"What if: {answers}", soft_wrap=True)


def _print_groups(console: Console, groups: Sequence[GroupRow]) -> None:
    from stepscope.summary.text_tables import plain_table

    table = plain_table(
        "Communication, per call", "kind", "axis", "groups>", "ranks>", "scope", "per step>",
        "transfer ms>", "bus GB/s>", "skew ms>", "last to arrive",
    )  # fmt: skip
    for one in groups[:_MOST_GROUPS]:
        table.add_row(
            one.kind, one.axis, str(one.groups), str(one.members), one.scope, f"{one.calls:.3g}",
            ms(one.transfer_ms), "" if one.bus_gbs is None else f"{one.bus_gbs:.3g}",
            ms(one.skew_ms), _last(one),
        )  # fmt: skip
    console.print(table)


def _last(one: GroupRow) -> str:
    stage = one.last_place.partition(":")[0]
    after = f", after {stage}" if stage else ""
    return f"rank {one.last_rank} ({one.last_share:.0%}{after})"


def _balance(report: JobReport) -> str:
    return (
        f"  own work {ms(report.work_ms)} ms on the median rank, "
        f"{ms(report.slowest_ms)} ms on the slowest of each step"
    )


def _share(cost_ms: float, report: JobReport) -> str:
    return f"{percent(cost_ms / max(report.step_ms, 1e-9))} of the step"


def _print_ranks(console: Console, report: JobReport) -> None:
    from stepscope.summary.text_tables import plain_table

    stages = _columns(report)
    rows = sorted(report.rows, key=lambda row: -sum(row["work_ms"].values()))
    table = plain_table(
        "Ranks that work longest, ms per step", "rank", "node~", *(f"{one}>" for one in stages),
        "own work>", "waiting>",
    )  # fmt: skip
    for row in rows[:_MOST_ROWS]:
        table.add_row(str(row["rank"]), row["node"], *_cells(row, stages))
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(f"… {len(rows) - _MOST_ROWS} more ranks (--json has all)", style="dim")


def _columns(report: JobReport) -> list[str]:
    """The stages that take a tenth of a percent of the step on some rank."""
    least = 0.001 * report.step_ms
    names = list(report.rows[0]["work_ms"]) if report.rows else []
    return [name for name in names if max(row["work_ms"][name] for row in report.rows) > least]


def _cells(row: dict[str, Any], stages: Sequence[str]) -> list[str]:
    work = row["work_ms"]
    return [*(ms(work[stage]) for stage in stages), ms(sum(work.values())), ms(row["waiting_ms"])]
