"""Collectives by rank: who arrives last, and who waits."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.ranks import collective_table as module
from stepscope.models.ranks.collective_table import arrival_matrix
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat
from stepscope.trace.trace import Trace

_LENGTH = 1000


Call = tuple[str, int, int] | tuple[str, int, int, str]


def job(*arrivals: list[Call], steps: int = 1) -> Trace:
    """Steps of ranks, each with its calls: process group, when it arrives and leaves, µs, kind."""
    return concat([_rank(rank, calls, steps, len(arrivals)) for rank, calls in enumerate(arrivals)])


def _rank(rank: int, calls: list[Call], steps: int, world: int) -> Trace:
    lines = []
    for step in range(steps):
        at = _LENGTH * step
        lines += [f"main | {at} {at + 900} | ProfilerStep#{step}", f"main | {at} {at + 5} | aten::mm"]
        for group, start, end, *kind in calls:
            name = kind[0] if kind else "all_reduce"
            argument = f'Process_Group_Name="{group}"'
            lines.append(f"main | {at + start} {at + end} | gloo:{name} | {argument}")
    return annotate(drawn_trace("\n".join(lines), ranks=(rank,), world_size=world))


def test_whoever_stays_shortest_is_late_and_whoever_waits_longest_is_not() -> None:
    """They leave at 400; rank 2 comes at 300, rank 1, which waits longest, at 100."""
    matrix = arrival_matrix(job([("a", 200, 400)], [("a", 100, 400)], [("a", 300, 400)]), 0)
    (row,) = matrix.rows
    assert (row.kind, row.groups, row.calls) == ("allreduce", "a", 1)
    assert (row.last_rank, row.last_share) == (2, 1)
    assert (row.waiting_rank, row.wait_ms) == (1, pytest.approx(0.2))
    assert matrix.ranks == [0, 1, 2]
    assert row.late_ms == pytest.approx([0, -0.1, 0.1])


def test_the_collectives_of_a_step_are_rows_in_their_order() -> None:
    """Rank 1 is late at the first, rank 0 at the second: each is named at its own."""
    trace = job([("a", 100, 400), ("a", 600, 700)], [("a", 300, 400), ("a", 450, 700)], steps=3)
    first, second = arrival_matrix(trace, 0).rows
    assert [(row.nth, row.calls, row.last_rank, row.waiting_rank) for row in (first, second)] == [
        (1, 1, 1, 0),
        (2, 1, 0, 1),
    ]
    (alone, _) = arrival_matrix(trace, 0, step=1).rows
    assert trace.events["step"][alone.event] == 1
    assert trace["tracks"]["rank"][trace.events["track"][alone.event]] == 1


def test_a_rank_outside_a_group_takes_no_part() -> None:
    trace = job([("a", 100, 400)], [("a", 300, 400)], [("b", 100, 200)], [("b", 150, 200)])
    late = {row.groups: row.late_ms for row in arrival_matrix(trace, 0).rows}
    assert late["a"] == [pytest.approx(-0.1), pytest.approx(0.1), None, None]
    assert late["b"] == [None, None, pytest.approx(-0.025), pytest.approx(0.025)]


def test_many_collectives_are_rows_by_group_and_many_groups_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is compared with the others of its own group."""
    pairs = [[(name, 100, 400), (name, 500, 700)] for name in "ab"]
    late = [[(name, 300, 400), (name, 600, 700)] for name in "ab"]
    trace = job(pairs[0], late[0], late[1], pairs[1])
    monkeypatch.setattr(module, "_MOST_ROWS", 2)
    rows = arrival_matrix(trace, 0).rows
    assert [(row.groups, row.nth, row.calls, row.last_rank) for row in rows] == [
        ("a", None, 2, 1),
        ("b", None, 2, 2),
    ]
    monkeypatch.setattr(module, "_MOST_ROWS", 1)
    matrix = arrival_matrix(trace, 0)
    (row,) = matrix.rows
    assert (row.groups, row.calls, matrix.left) == ("2 groups of 2", 4, 0)
    assert row.late_ms == pytest.approx([-0.15, 0.15, 0.15, -0.15])
    assert row.last_rank in (1, 2)
    assert row.waiting_rank in (0, 3)


def test_of_too_many_kinds_the_costliest_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    early = [("a", 100, 110, "broadcast"), ("a", 200, 400), ("a", 500, 510, "all_gather")]
    late = [("a", 102, 110, "broadcast"), ("a", 390, 400), ("a", 501, 510, "all_gather")]
    monkeypatch.setattr(module, "_MOST_ROWS", 2)
    matrix = arrival_matrix(job(early, late), 0)
    assert [row.kind for row in matrix.rows] == ["broadcast", "allreduce"]
    assert matrix.left == 1


def test_one_rank_alone_has_no_rows() -> None:
    matrix = arrival_matrix(job([("a", 100, 400)]), 0)
    assert (matrix.ranks, matrix.rows) == ([], [])
