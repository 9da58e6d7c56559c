"""The tables of a job's ranks and of its communication, as wide as a terminal has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.ranks.group_table import GroupRow
from stepscope.ranks.job import JobReport
from stepscope.summary.numbers import ms, size

if TYPE_CHECKING:
    from rich.console import Console

_MOST_RANKS = 6
_MOST_GROUPS = 5
_BETWEEN = 3  # columns are so far apart
_HEADS = {"data_loading": "loading", "zero_grad": "zero grad", "host": "host-bound"}


@dataclass(frozen=True)
class Column:
    """A column; of those that do not fit, the ones of the highest `spare` are left out.

    Attributes:
        head: ends with `>` for numbers.
        cells: one for each row.
        spare: 0 for a column that stays.
    """

    head: str
    cells: Sequence[str]
    spare: float = 0.0

    @property
    def width(self) -> int:
        """In characters."""
        return max(len(self.head.rstrip(">")), *map(len, self.cells))


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns for which there is room; empty ones are left out.

    Example:
        >>> columns = [Column("kind", ["allreduce"]), Column("bus GB/s>", ["9"], spare=1)]
        >>> [[one.head for one in fitting(columns, width)] for width in (80, 15)]
        [['kind', 'bus GB/s>'], ['kind']]
    """
    kept = [one for one in columns if any(one.cells)]
    while sum(one.width + _BETWEEN for one in kept) - _BETWEEN > width:
        most = max(kept, key=lambda one: one.spare)
        if not most.spare:
            break
        kept.remove(most)
    return kept


def print_ranks(console: Console, report: JobReport) -> None:
    """Print the ranks that work longest, with the stages for which there is room."""
    rows = sorted(report.rows, key=lambda row: -sum(row["work_ms"].values()))
    shown = rows[:_MOST_RANKS]
    work = [row["work_ms"] for row in shown]
    _print(console, "Ranks that work longest, ms per step", [
        Column("rank", [str(row["rank"]) for row in shown]),
        Column("node", [row["node"] for row in shown], spare=0.5),
        *_stages(report, work),
        Column("own work>", [ms(sum(one.values())) for one in work]),
        Column("waiting>", [ms(row["waiting_ms"]) for row in shown]),
        Column("peak memory>", [_peak(row["peak_memory_bytes"]) for row in shown], spare=0.8),
    ])  # fmt: skip
    if len(rows) > _MOST_RANKS:
        console.print(f"… {len(rows) - _MOST_RANKS} more ranks (--json has all)", style="dim")


def _peak(bytes: int | None) -> str:
    return "" if bytes is None else size(bytes)


def _stages(report: JobReport, work: Sequence[dict[str, float]]) -> list[Column]:
    """The stages that take a tenth of a percent of the step on some rank; short ones may go."""
    longest = {
        name: max(row["work_ms"][name] for row in report.rows)
        for name in (report.rows[0]["work_ms"] if report.rows else ())
    }
    return [
        Column(f"{_HEADS.get(name, name)}>", [ms(one[name]) for one in work], 1 + 1 / most)
        for name, most in longest.items() if most > 0.001 * report.step_ms
    ]  # fmt: skip


def print_groups(console: Console, groups: Sequence[GroupRow]) -> None:
    """Print the communication by kind and process groups."""
    shown = groups[:_MOST_GROUPS]
    if not shown:
        return
    _print(console, "Communication, per call", [
        Column("kind", [one.kind for one in shown]),
        Column("axis", [one.axis for one in shown], spare=1),
        Column("groups", [f"{one.groups} × {one.members}" for one in shown], spare=2),
        Column("nodes", [one.scope.partition(" ")[0] for one in shown], spare=3),
        Column("per step>", [f"{one.calls:.3g}" for one in shown], spare=4),
        Column("ms>", [ms(one.transfer_ms) for one in shown]),
        Column("bus GB/s>", [_rate(one) for one in shown], spare=0.5),
        Column("skew ms>", [ms(one.skew_ms) for one in shown]),
        Column("last to arrive", [f"rank {one.last_rank} ({one.last_share:.0%})" for one in shown]),
        Column("after", [one.last_place.partition(":")[0] for one in shown], spare=5),
    ])  # fmt: skip


def _rate(one: GroupRow) -> str:
    return "" if one.bus_gbs is None else f"{one.bus_gbs:.3g}"


def _print(console: Console, title: str, columns: Sequence[Column]) -> None:
    from stepscope.summary.text_tables import plain_table

    kept = fitting(columns, console.width)
    table = plain_table(title, *(one.head for one in kept))
    for cells in zip(*(one.cells for one in kept), strict=True):
        table.add_row(*cells)
    console.print(table)
    left = [one.head.rstrip(">") for one in columns if any(one.cells) and one not in kept]
    if left:
        console.print(f"no room for: {', '.join(left)}", style="dim")
