"""What the verdict and a finding say of the same wait is one number, in every shared trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.errors import StepscopeError
from stepscope.trace.trace import Trace

_READ = (".json", ".gz", ".pb", ".sqlite")
_WHOLE_WAITS = ("cpu_latency", "exposed_communication", "idle_device", "input_bound")
_RULES = {rule.name: rule for rule in RULES if rule.name in (*_WHOLE_WAITS, "python_stall")}


def contexts(traces: Path, opened: Callable[[str], Trace]) -> Iterator[tuple[str, RuleContext]]:
    """Every shared trace with steps that run on a device."""
    for path in sorted(traces.rglob("*")):
        if path.suffix not in _READ or "malformed" in path.parts:
            continue
        name = str(path.relative_to(traces))
        try:
            context = RuleContext(opened(name))
        except StepscopeError:  # not a trace, or one without steps
            continue
        if context.measures.has_device:
            yield name, context


def percents(finding: Finding) -> set[str]:
    """The shares that the first part of the sentence states; the second is on parts of the wait."""
    return set(re.findall(r"\d+%", finding.what.partition("; ")[0]))


def test_a_wait_has_one_number_in_the_verdict_and_in_findings(
    traces: Path, opened: Callable[[str], Trace]
) -> None:
    compared, wrong = set(), list[str]()
    for name, context in contexts(traces, opened):
        verdict = context.measures.summary.verdict
        for finding in apply_rules(context, list(_RULES.values())):
            causes = _RULES[finding.rule].explains or (verdict.bound_by,)
            known = {cause: context.measures.idle_share(cause) for cause in causes}
            if finding.rule in _WHOLE_WAITS:
                right = percents(finding) <= {f"{share:.0%}" for share in known.values()}
            else:
                right = all(int(one[:-1]) / 100 <= sum(known.values()) + 0.005 for one in percents(finding))
            if verdict.bound_by in causes and finding.rule in _WHOLE_WAITS:
                compared.add(finding.rule)
                right &= f"{verdict.share:.0%}" in percents(finding)
            if not right:
                wrong.append(f"{name}: {verdict.sentence} {finding.what}")
    assert not wrong, "\n".join(wrong)
    assert compared == set(_WHOLE_WAITS)


def test_waiting_for_other_ranks_is_no_gain_of_faster_collectives(opened: Callable[[str], Trace]) -> None:
    context = RuleContext(opened("dlrm_8rank_v100"))
    (finding,) = apply_rules(context, [_RULES["exposed_communication"]])
    free = context.gains.whatif("scale:select=category=communication,factor=0")
    assert free is not None
    assert finding.gain.ms <= free.ms < 0.01 * context.measures.step_ms
    assert finding.severity == "info"
    assert "waiting for other ranks" in finding.what
    assert "stepscope ranks" in finding.advice
