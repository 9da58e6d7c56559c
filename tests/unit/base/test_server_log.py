"""What servers log: neither shortages nor clients fill it."""

from __future__ import annotations

import errno
import logging

import pytest

from stepscope.base.server_log import RepeatedErrors


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_shortage_of_descriptors_is_a_line_per_tenfold(said: list[str]) -> None:
    """asyncio reports each connection that it cannot accept, once a second."""
    log = logging.Logger("asyncio")
    log.addHandler(RepeatedErrors(said.append))
    for number in range(100):
        shortage = OSError(errno.EMFILE, "Too many open files")
        log.error(f"socket.accept() out of system resource\nsocket: <fd={number}>", exc_info=shortage)
    line = "times so far: socket.accept() out of system resource (OSError: [Errno 24] Too many open files)"
    assert said[1:] == [f"10 {line}", f"100 {line}"]


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
