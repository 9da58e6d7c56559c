"""Every rule on the steps of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyze.finding import LEVELS, Finding
from stepscope.analyze.rule import Rule
from stepscope.analyze.subject import Subject
from stepscope.errors import RuleError, StepscopeError

LEAST_SHARE = 0.01


def apply_rules(subject: Subject, rules: Sequence[Rule]) -> list[Finding]:
    """What the rules find, the most severe first, then by the time that it could give back.

    Findings that could give back less than 1 % of the step are left out.

    Args:
        subject: the steps of one rank.
        rules: `stepscope.analyze.RULES`, or others.

    Raises:
        RuleError: if a rule fails.
    """
    found = [finding for rule in rules for finding in _apply(rule, subject)]
    worth = [finding for finding in found if finding.share >= LEAST_SHARE]
    return sorted(worth, key=lambda one: (-LEVELS.index(one.severity), -one.gain.ms, one.rule))


def _apply(rule: Rule, subject: Subject) -> list[Finding]:
    try:
        return [replace(finding, rule=rule.name) for finding in rule.function(subject)]
    except StepscopeError:
        raise
    except Exception as error:
        raise RuleError(f"rule {rule.name} failed on {subject.trace.metadata.source}: "
                        f"{type(error).__name__}: {error}") from error  # fmt: skip
