"""What servers log: neither shortages nor clients fill it."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from stepscope.base.server_log import AcceptErrors, RepeatedErrors


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
        "too many open files: new connections wait until others are closed; raise the limit with `ulimit -n`"
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


@pytest.fixture
def log(said: list[str]) -> logging.Logger:
    log = logging.Logger("server")
    log.addHandler(RepeatedErrors(said.append))
    return log


def test_many_errors_of_a_kind_are_a_line_per_tenfold(log: logging.Logger, said: list[str]) -> None:
    for client in range(100_000):
        log.warning("client %d sent no JSON", client)
    assert said == [
        "client 0 sent no JSON",
        "10 times so far: client 9 sent no JSON",
        "100 times so far: client 99 sent no JSON",
        "1,000 times so far: client 999 sent no JSON",
        "10,000 times so far: client 9999 sent no JSON",
        "100,000 times so far: client 99999 sent no JSON",
    ]


def test_the_first_of_a_kind_has_its_traceback(log: logging.Logger, said: list[str]) -> None:
    for _ in range(10):
        try:
            int("ten")
        except ValueError:
            log.exception("unable to handle message")
    first, tenth = said
    assert first.startswith("unable to handle message\nTraceback")
    assert tenth.startswith("10 times so far: unable to handle message (ValueError: invalid")
    assert "\n" not in tenth


def test_different_kinds_are_counted_separately(log: logging.Logger, said: list[str]) -> None:
    for error in (ValueError("a"), KeyError("b"), ValueError("c")):
        log.error("failed", exc_info=error)
    log.error("failed")
    assert len(said) == 3


def test_texts_that_clients_choose_cannot_make_endless_kinds(log: logging.Logger, said: list[str]) -> None:
    for number in range(10_000):
        log.warning("unknown method %r", "".join(chr(97 + int(d)) for d in str(number)))
    assert len(said) == 104  # 100 kinds, and the 1st, 10th, 100th and 1,000th of the others
    assert said[-1] == "1,000 times so far: errors of further kinds"


def test_a_log_that_nobody_reads_stops_nothing(log: logging.Logger) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    log.handlers[:] = [RepeatedErrors(broken)]
    log.error("failed")


def test_arguments_that_do_not_fit_are_no_error(log: logging.Logger, said: list[str]) -> None:
    log.error("%d of %d", "one")
    assert said == ["%d of %d"]


def test_information_is_not_shown(log: logging.Logger, said: list[str]) -> None:
    log.info("connected")
    assert said == []
