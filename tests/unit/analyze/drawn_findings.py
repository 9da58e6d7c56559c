"""What a rule finds in a drawn trace."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

V100 = ({"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "numSms": 80},)
A100 = ({"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108},)
DEVICE = {"devices": A100}
JAX = {"devices": A100, "framework": "jax"}
NODE = "autograd::engine::evaluate_function:"
WAIT = "\nmain | 100 995 | cudaDeviceSynchronize"


def findings(text: str, **metadata: Any) -> list[Finding]:
    """What all rules find."""
    return apply_rules(RuleContext(annotate(drawn_trace(text, **metadata))), RULES)


def found(rule: str, text: str, **metadata: Any) -> Finding | None:
    """The worst that one rule finds, None where it is silent."""
    mine = [one for one in findings(text, **metadata) if one.rule == rule]
    return mine[0] if mine else None


BY_NAME = {rule.name: rule for rule in RULES}
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


class Case(NamedTuple):
    """A recording, and all that one rule says of it; nothing where it is silent."""

    rule: str
    trace: str | Trace
    says: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})


class Limit(NamedTuple):
    """What a rule just finds, and what is just too little."""

    rule: str
    found: str | Trace
    silent: str | Trace
    metadata: Mapping[str, Any] = MappingProxyType({})


def alone(rule: str, trace: str | Trace, **metadata: Any) -> list[Finding]:
    """What one rule finds in a drawn or annotated trace, whatever others find."""
    known = annotate(drawn_trace(trace, **metadata)) if isinstance(trace, str) else trace
    return apply_rules(RuleContext(known), [BY_NAME[rule]])


def told(findings: Iterable[Finding]) -> str:
    """Whole findings in lines: what each says, first advice, severity and gain, its basis, and each place."""
    lines = [line for finding in findings for line in _told(finding)]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, 90))


def _told(finding: Finding) -> Iterator[str]:
    gain, (low, high) = finding.gain, finding.gain.stated_ms
    yield from SENTENCE.split(finding.what)
    yield f"-> {SENTENCE.split(finding.advice)[0]}"
    yield f"{finding.severity}: {gain.ms:.9g} of {finding.steady_ms:.9g} ms, {low:.9g} to {high:.9g}"
    yield from filter(None, (gain.words, " + ".join(gain.changes), finding.patch and finding.patch.text))
    for one in finding.evidence:
        yield " ".join(f"* {one.name} × {one.count:g}, {one.ms:.9g} ms, {one.stage} {one.where}".split())


def in_full(cases: Mapping[str, Case]) -> Callable[[str], None]:
    """A test that the rule of each case says this and nothing else."""

    @pytest.mark.parametrize("name", cases)
    def test(name: str) -> None:
        rule, trace, says, metadata = cases[name]
        assert told(alone(rule, trace, **metadata)) == textwrap.dedent(says).strip()

    return test


def from_limit_on(limits: Mapping[str, Limit]) -> Callable[[str], None]:
    """A test that each rule finds something from its limit on, and nothing below it."""

    @pytest.mark.parametrize("name", limits)
    def test(name: str) -> None:
        rule, found, silent, metadata = limits[name]
        assert [len(alone(rule, trace, **metadata)) for trace in (found, silent)] == [1, 0]

    return test


def repeated(inside: str, us: float = 1000, times: int = 2, mark: str = "ProfilerStep#{}") -> str:
    """Steps with the same lines; each has its own correlations and sequence numbers."""
    lines = []
    for number in range(times):
        lines.append(f"main | {number * us} {number * us + us} | {mark.format(number)}")
        for line in filter(None, map(str.strip, inside.splitlines())):
            track, span, *rest = (part.strip() for part in line.split("|"))
            begin, end = (float(time) + number * us for time in span.split())
            rest = [_numbered(part, 1000 * number) for part in rest]
            lines.append(" | ".join([track, f"{begin} {end}", *rest]))
    return "\n".join(lines)


def _numbered(options: str, more: int) -> str:
    return re.sub(r"\b(corr|seq)=(\d+)", lambda found: f"{found[1]}={int(found[2]) + more}", options)


def work(
    number: int,
    name: str,
    begin: float,
    end: float,
    operator: str = "aten::mm",
    more: str = "",
    kernel: str = "",
) -> str:
    """An operator early in the step, and the kernel that it launches."""
    at = 4 * number
    return f"""
    main     | {at} {at + 3} | {operator} | {more}
    main     | {at + 1} {at + 2} | cudaLaunchKernel | corr={number}
    stream 7 | {begin} {end} | {name} | corr={number} {kernel}
    """
