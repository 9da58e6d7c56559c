from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from itertools import count

import pytest

from stepscope.faces.terminal.output import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stderr: io.StringIO, seconds: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("reading x.json", clock=lambda: next(seconds)) as tell:
        for done in (1, 2, 3):
            tell(done, 3)
    return stderr.getvalue()


def test_what_takes_over_a_second_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reading x.json" in told(Terminal(), iter(count(0.0, 0.9)), monkeypatch)


def test_what_is_quick_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(Terminal(), iter(count(0.0, 0.2)), monkeypatch) == ""


def test_where_nobody_looks_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(io.StringIO(), iter(count(0.0, 0.9)), monkeypatch) == ""
