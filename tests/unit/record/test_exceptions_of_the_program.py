"""What a signal handler raises while our code runs is the program's; what our code raises is not."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from stepscope.record.patch import ignoring


class Late(Exception):
    pass


def late(number: int, frame: FrameType | None) -> None:
    raise Late


class Alarm:
    def ring(self, number: int, frame: FrameType | None) -> None:
        self.ring_loudly()

    def ring_loudly(self) -> None:
        raise TimeoutError


def of_two_words(which: type[Exception], number: int, frame: FrameType | None) -> None:
    raise which


def of_any_words(*words: Any) -> None:
    raise Late


HANDLERS: dict[str, tuple[Callable[..., Any], type[BaseException]]] = {
    "function": (late, Late),
    "method": (Alarm().ring, TimeoutError),
    "partial": (partial(of_two_words, OSError), OSError),
    "any words": (of_any_words, Late),
    "interrupt": (signal.default_int_handler, KeyboardInterrupt),
}


@pytest.fixture
def handler() -> Iterator[Callable[[Callable[..., Any]], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", HANDLERS)
def test_an_exception_of_a_signal_handler_passes(handler: Callable[..., object], name: str) -> None:
    function, kind = HANDLERS[name]
    handler(function)
    with pytest.raises(kind), ignoring(Exception):
        signal.raise_signal(signal.SIGUSR1)


def test_other_exceptions_are_ignored(handler: Callable[..., object]) -> None:
    handler(lambda *words: None)
    with ignoring(Exception):
        signal.raise_signal(signal.SIGUSR1)
        late(0, None)
        pytest.fail("was not raised")
    with pytest.raises(ZeroDivisionError), ignoring(OSError):
        1 / 0  # noqa: B018


def test_an_exception_of_a_signal_handler_passes_where_it_was_taken_for_another(
    handler: Callable[..., object],
) -> None:
    """As of a library that cannot be loaded; what the program handled before our code ran stays handled."""

    def load() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError:
            raise ImportError("no library") from None

    def hook() -> None:
        with ignoring(Exception):
            raise ImportError("no library")

    handler(Alarm().ring)
    with pytest.raises(TimeoutError), ignoring(Exception):
        load()
    with pytest.raises(TimeoutError) as handled:
        signal.raise_signal(signal.SIGUSR1)
    try:
        raise handled.value
    except TimeoutError:
        hook()
