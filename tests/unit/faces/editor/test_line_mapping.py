"""Measured lines in a text that was edited since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.faces.editor.line_marks import MappedLine, map_lines

TEXT = ["import torch", "", "class Net:", "    def forward(self, x):", "        return self.a(x)"]


def test_nothing_edited():
    assert map_lines(TEXT, TEXT) == {line: MappedLine(line, False) for line in range(5)}


def test_lines_typed_above_move_the_rest_down():
    now = ["import torch", "import math", "import os", *TEXT[1:]]
    assert map_lines(TEXT, now) == {0: MappedLine(0, False)} | {
        n: MappedLine(n + 2, False) for n in range(1, 5)
    }


def test_a_changed_line_is_stale_and_the_others_are_not():
    now = [*TEXT[:4], "        return self.b(x)"]
    assert map_lines(TEXT, now)[4] == MappedLine(4, True)
    assert not any(map_lines(TEXT, now)[line].stale for line in range(4))


def test_undone_is_fresh_again():
    changed = [*TEXT[:2], "class Other:", *TEXT[3:]]
    assert map_lines(TEXT, changed)[2].stale
    assert not map_lines(TEXT, list(TEXT))[2].stale


def test_deleted_lines_are_gone():
    assert set(map_lines(TEXT, TEXT[:2])) == {0, 1}
    assert map_lines(TEXT, []) == {}


def test_a_line_split_in_two_is_stale_where_it_began():
    now = [*TEXT[:4], "        y = self.a(x)", "        return y"]
    assert map_lines(TEXT, now)[4] == MappedLine(4, True)


LINES = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=25)


@given(LINES, LINES)
def test_fresh_lines_read_the_same_in_the_same_order(old, new):
    found = map_lines(old, new)
    assert all(old[line] == new[place.line] for line, place in found.items() if not place.stale)
    now = [place.line for place in found.values()]
    assert now == sorted(set(now))
    assert all(0 <= line < len(new) for line in now)


@given(LINES, LINES, st.lists(st.text("xyz", min_size=1), max_size=4))
def test_what_is_typed_between_moves_lines_and_makes_none_stale(above, below, typed):
    found = map_lines(above + below, above + typed + below)
    assert all(
        place == MappedLine(line + len(typed) * (line >= len(above)), False) for line, place in found.items()
    )
    assert len(found) == len(above + below)
