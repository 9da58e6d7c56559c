"""A server that runs out of descriptors says so in one line."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from stepscope.accept_errors import AcceptErrors


class Loop:
    """A clock, and what an event loop would log."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.logged: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.logged.append(context)


def refused(number: int) -> dict[str, Any]:
    """What asyncio reports if it cannot accept a connection."""
    return {"exception": OSError(number, "Too many open files"), "socket": object()}


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_shortage_of_descriptors_is_one_line_however_long_it_lasts(said: list[str]) -> None:
    loop, handler = Loop(), AcceptErrors(said.append)
    for loop.now_s in range(600):
        handler(loop, refused(errno.EMFILE))
    assert said == [
        "too many open files: new connections wait until others are closed; raise the limit with "
        "`ulimit -n`"
    ]
    assert loop.logged == []


def test_another_shortage_after_a_minute_without_one_is_another_line(said: list[str]) -> None:
    loop, handler = Loop(), AcceptErrors(said.append)
    for loop.now_s in (0, 1, 2, 61, 121, 122):
        handler(loop, refused(errno.ENFILE))
    assert len(said) == 2  # at 0 and at 121


@pytest.mark.parametrize(
    "context",
    [
        {"message": "a task failed", "exception": OSError(errno.EMFILE, "in a task")},
        {"exception": ConnectionResetError(errno.ECONNRESET, "reset"), "socket": object()},
        {"message": "no exception"},
    ],
)
def test_other_errors_are_logged_as_before(said: list[str], context: dict[str, Any]) -> None:
    loop = Loop()
    AcceptErrors(said.append)(loop, context)
    assert (said, loop.logged) == ([], [context])
