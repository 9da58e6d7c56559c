"""How wide a command's text is."""

from __future__ import annotations

import sys

import pytest
from rich.text import Text

from stepscope.faces.terminal.output import FILE_WIDTH, terminal


def test_in_a_pipe_or_a_file_there_is_room_for_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert terminal().width == FILE_WIDTH


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("72", 72),
        ("1", 20),
        ("9" * 9, 4000),
        *((bad, FILE_WIDTH) for bad in ("0", "-5", "", "²", "9" * 5000)),
    ],
)
def test_the_environment_has_the_last_word_within_reason(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "²")
    assert terminal().width == width


def test_a_name_of_a_file_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    console.print(Text("\x1b]0;title\x07aten::mm\x9b2J\u0430\u202egnp\u2069\n"), "\x1b[31mred")
    assert capsys.readouterr().out == "]0;titleaten::mm2J\u0430gnp\n [31mred\n"
