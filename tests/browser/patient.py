"""Playwright's page, of which each call first waits until the page shows what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Keyboard, Locator, Mouse


class Patient:
    """A page or a part of it; every call on it waits first, so that none meets an older answer.

    The page keeps what it shows until the next answer is there. What is read right after a click
    would be what was there before it.
    """

    def __init__(self, inner: Any, settle: Callable[[], None]) -> None:
        self._inner = inner
        self._settle = settle

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._waiting(found) if callable(found) else self._patient(found)

    def _waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def settled(*arguments: Any, **options: Any) -> Any:
            self._settle()
            return self._patient(call(*arguments, **options))

        return settled

    def _patient(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._patient(one) for one in found]
        part = isinstance(found, Keyboard | Locator | Mouse)
        return Patient(found, self._settle) if part else found
