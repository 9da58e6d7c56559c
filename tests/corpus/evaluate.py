"""Apply all rules to the corpus, and compare what they find with its truth."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cases import CLEAN_CASES, DEFECTS, Case

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules


@dataclass(frozen=True)
class Outcome:
    """What the rules find in a case.

    Attributes:
        case: the case.
        findings: all findings.
    """

    case: Case
    findings: tuple[Finding, ...]

    @property
    def meant(self) -> list[Finding]:
        """Findings of the rules that must report the defect."""
        return [one for one in self.findings if one.rule in self.case.rules]

    @property
    def shown(self) -> bool:
        """Whether one of them shows the cause and the place."""
        return any(re.search(self.case.shows, _text(one)) for one in self.meant)

    @property
    def alarms(self) -> list[str]:
        """Rules that report a warning or worse."""
        return [one.rule for one in self.findings if one.severity != "info"]


def outcome(case: Case, seed: int = 0) -> Outcome:
    """Apply the rules to a case, drawn with a seed."""
    return Outcome(case, tuple(apply_rules(RuleContext(case.trace(seed)), RULES)))


def _text(finding: Finding) -> str:
    places = (f"{place.name} {place.where}" for place in finding.evidence)
    return " ".join((finding.what, finding.advice, *places))


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown by rule: planted, found, cause and place right, alarms on clean steps."""
    planted, found, shown, alarms = (defaultdict[str, int](int) for _ in range(4))
    for one in outcomes:
        for rule in one.alarms if not one.case.rules else ():
            alarms[rule] += 1
        if one.case.rules:
            rule = one.case.rules[0]
            planted[rule] += 1
            found[rule] += bool(one.meant)
            shown[rule] += one.shown
    names = [rule.name for rule in RULES]
    silent = [f"`{name}`" for name in names if not planted[name] and not alarms[name]]
    rows = [
        f"| `{name}` | {planted[name]} | {found[name]} | {shown[name]} | {alarms[name]} |"
        for name in names
        if planted[name] or alarms[name]
    ]
    total = [sum(one.values()) for one in (planted, found, shown, alarms)]
    rows.append(f"| all | {total[0]} | {total[1]} | {total[2]} | {total[3]} |")
    head = "| rule | planted | found | cause and place | false alarms |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows) + f"\n\nNot planted, and without a false alarm: {', '.join(silent)}."


def evaluated() -> list[Outcome]:
    """The outcome of every case."""
    return [outcome(case) for case in (*DEFECTS, *CLEAN_CASES)]
