"""Every finding of every test here is as short as a reader wants it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext

pytest.register_assert_rewrite("drawn_findings")  # whose tests show both sides where they fail

MOST_WORDS = {"what": 12, "advice": 18}  # of the first sentence: the title, and what to do


@pytest.fixture(autouse=True)
def short_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where the title of a finding has more than 12 words, or its advice more than 18."""
    made = RuleContext._made

    def checked(context: RuleContext, what: str, advice: str, **facts: Any) -> Finding:
        for name, text in (("what", what), ("advice", advice)):
            first = re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0]
            assert len(first.split()) <= MOST_WORDS[name], first
        return made(context, what, advice, **facts)

    monkeypatch.setattr(RuleContext, "_made", checked)
