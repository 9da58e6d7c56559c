"""What a rule finds in a drawn trace."""

from __future__ import annotations

from typing import Any

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

V100 = ({"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "numSms": 80},)
A100 = ({"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108},)


def findings(text: str, **metadata: Any) -> list[Finding]:
    """What all rules find."""
    return apply_rules(RuleContext(annotate(drawn_trace(text, **metadata))), RULES)


def found(rule: str, text: str, **metadata: Any) -> Finding | None:
    """The worst that one rule finds, None where it is silent."""
    mine = [one for one in findings(text, **metadata) if one.rule == rule]
    return mine[0] if mine else None
