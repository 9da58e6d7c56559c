"""A job as text for a terminal, on one screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from stepscope.base.numbers import ms, percent, plural, rounded, size
from stepscope.facts.summary.text_tables import plain_table
from stepscope.models.ranks.job import JobReport, RankRow, cost, findings_of
from stepscope.models.ranks.map_ranks import RankResult
from stepscope.models.ranks.process_groups import GroupRow
from stepscope.models.ranks.stragglers import stage_in_words
from stepscope.trace.recorded_steps import QUIET

# Rows of each part; chosen: together they fit on one screen.
_MOST_STRAGGLERS = 3  # findings, two lines each
_MOST_ERRORS = 5  # files that cannot be read
_MOST_SHARES = 4  # parts of the imbalance, in one sentence
_MOST_RANKS = 6  # ranks
_MOST_GROUPS = 5  # kinds of communication
_BETWEEN = 3  # columns are so far apart
_PARTS = {"worker": "rank", "operation": ""}  # where the words of the replay are not those of a reader
_HEADS = {"data_loading": "loading", "zero_grad": "zero grad", "host": "host-bound"}


def print_job(console: Console, report: JobReport, failed: Sequence[RankResult]) -> None:
    """Print a job: the verdict, the stragglers, and the ranks that work longest."""

    for result in failed[:_MOST_ERRORS]:
        console.print(Text(f"! {result.error}"), soft_wrap=True)
    if len(failed) > _MOST_ERRORS:
        console.print(f"! and {len(failed) - _MOST_ERRORS} more files that cannot be read")
    shares = {row.core_share: row.rank for row in report.rows if row.core_share and not row.device}
    if (least := min(shares, default=1.0)) < QUIET:
        text = f"! rank {shares[least]} got {percent(least)} of a core: other ranks or programs used it"
        console.print(Text(text, "yellow"), soft_wrap=True)
    _print_stragglers(console, report)
    head = f"\n{plural(report.ranks, 'rank')} · {plural(report.steps, 'step')}"
    console.print(
        Text(f"{head} · {ms(report.step_ms)} ms per step", "bold"),
        f"  own work {ms(report.work_ms)} ms on the median rank, "
        f"{ms(report.slowest_ms)} ms on the slowest of each step",
    )
    if report.pipeline:  # its stages wait for each other, whatever their ranks do
        console.print(Text(f"▶ {report.pipeline.sentence}", "bold yellow"), soft_wrap=True)
        if report.pipeline.advice:
            console.print(Text(f"  {report.pipeline.advice}", "dim"), soft_wrap=True)
    _print_slowdown(console, report)
    _print_whatifs(console, report)
    _print_ranks(console, report)
    _print_groups(console, report.groups)


def _print_stragglers(console: Console, report: JobReport) -> None:
    if not report.stragglers:
        console.print(Text(f"▶ {findings_of(report).verdict}", "bold yellow"), soft_wrap=True)
    for one in report.stragglers[:_MOST_STRAGGLERS]:
        console.print(Text(f"▶ {one.sentence}", "bold yellow"), soft_wrap=True)
        console.print(Text(f"  {cost(one.cost_ms, report)}", "dim"), soft_wrap=True)
    if len(report.stragglers) > _MOST_STRAGGLERS:
        more = len(report.stragglers) - _MOST_STRAGGLERS
        console.print(Text(f"  … {more} more (--json has all)", "dim"))


def _print_slowdown(console: Console, report: JobReport) -> None:
    lost = report.slowdown
    if lost is None or not lost.shares:
        return
    parts = ", ".join(
        f"{_PARTS.get(one.part, one.part)} {stage_in_words(one.which)}".strip() + f" {percent(one.share)}"
        for one in lost.shares[:_MOST_SHARES]
    )
    console.print(
        f"\nImbalance makes the step {lost.ratio:.2f} times as long (simulated from a common start: "
        f"{ms(lost.replayed_ms)} ms, in balance {ms(lost.balanced_ms)} ms), which costs "
        f"{percent(lost.lost_ms / lost.replayed_ms)} of it. One part alone causes: {parts}",
        soft_wrap=True,
    )


def _print_whatifs(console: Console, report: JobReport) -> None:
    answers = ", ".join(
        f"{change} {ms(step_ms)} ms ({report.replayed_ms / step_ms:.2f}x)"
        for change, step_ms in report.whatifs.items()
    )
    if answers:
        console.print(f"What if: {answers}", soft_wrap=True)


@dataclass(frozen=True)
class TextColumn:
    """A column; of those that do not fit, the ones of the highest `spare` are left out."""

    head: str  # ends with `>` for numbers
    cells: Sequence[str]
    spare: float = 0.0  # 0 for a column that stays

    @property
    def width(self) -> int:
        """In characters."""
        return max(len(self.head.rstrip(">")), *map(len, self.cells))


def fitting(columns: Sequence[TextColumn], width: int) -> list[TextColumn]:
    """The columns for which there is room; empty ones are left out."""
    kept = [one for one in columns if any(one.cells)]
    while sum(one.width + _BETWEEN for one in kept) - _BETWEEN > width:
        most = max(kept, key=lambda one: one.spare)
        if not most.spare:
            break
        kept.remove(most)
    return kept


def _print_ranks(console: Console, report: JobReport) -> None:
    rows = sorted(report.rows, key=lambda row: -row.own_ms)
    shown = rows[:_MOST_RANKS]
    _print(
        console,
        "Ranks that work longest, ms per step",
        [
            TextColumn("rank", [str(row.rank) for row in shown]),
            TextColumn("node", [row.node for row in shown], spare=0.5),
            *_stages(report, shown),
            TextColumn("own work>", [ms(row.own_ms) for row in shown]),
            TextColumn("waiting>", [ms(row.waiting_ms) for row in shown]),
            TextColumn(
                "peak memory>",
                ["" if row.peak_memory_bytes is None else size(row.peak_memory_bytes) for row in shown],
                spare=0.8,
            ),
        ],
    )
    if len(rows) > _MOST_RANKS:
        console.print(f"… {len(rows) - _MOST_RANKS} more ranks (--json has all)", style="dim")


def _stages(report: JobReport, shown: Sequence[RankRow]) -> list[TextColumn]:
    """The stages that take a tenth of a percent of the step on some rank; short ones may go."""
    longest = {name: max(row.work_ms[name] for row in report.rows) for name in shown[0].work_ms}
    return [
        TextColumn(f"{_HEADS.get(name, name)}>", [ms(row.work_ms[name]) for row in shown], 1 + 1 / most)
        for name, most in longest.items()
        if most > 0.001 * report.step_ms
    ]


def _print_groups(console: Console, groups: Sequence[GroupRow]) -> None:
    shown = groups[:_MOST_GROUPS]
    if not shown:
        return
    _print(
        console,
        "Communication, per call",
        [
            TextColumn("kind", [one.kind for one in shown]),
            TextColumn("axis", [one.axis for one in shown], spare=1),
            TextColumn("groups", [f"{one.groups} × {one.members}" for one in shown], spare=2),
            TextColumn("nodes", [one.scope.partition(" ")[0] for one in shown], spare=3),
            TextColumn("per step>", [rounded(one.calls) for one in shown], spare=4),
            TextColumn("ms>", [ms(one.transfer_ms) for one in shown]),
            TextColumn(
                "bus GB/s>", ["" if one.bus_gbs is None else rounded(one.bus_gbs) for one in shown], spare=0.5
            ),
            TextColumn("skew ms>", [ms(one.skew_ms) for one in shown]),
            TextColumn("last to arrive", [f"rank {one.last_rank} ({one.last_share:.0%})" for one in shown]),
            TextColumn("after", [one.last_place.partition(":")[0] for one in shown], spare=5),
        ],
    )


def _print(console: Console, title: str, columns: Sequence[TextColumn]) -> None:
    kept = fitting(columns, console.width)
    table = plain_table(title, *(one.head for one in kept))
    for cells in zip(*(one.cells for one in kept), strict=True):
        table.add_row(*cells)
    console.print(table)
    left = [one.head.rstrip(">") for one in columns if any(one.cells) and one not in kept]
    if left:
        console.print(f"no room for: {', '.join(left)}", style="dim")
