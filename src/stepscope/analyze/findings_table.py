"""Findings as tables of the trace."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analyze.finding import Finding
from stepscope.trace.schema import EVIDENCE, FINDINGS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def with_findings(trace: Trace, findings: Sequence[Finding]) -> Trace:
    """The trace with its tables `findings` and `evidence` filled."""
    return trace.with_table(_findings(findings)).with_table(_evidence(findings))


def _findings(findings: Sequence[Finding]) -> Table:
    return Table(
        FINDINGS,
        {
            "rule": [one.rule for one in findings],
            "severity": [one.severity for one in findings],
            "rank": [one.rank for one in findings],
            "what": [one.what for one in findings],
            "advice": [one.advice for one in findings],
            "gain_ns": [round(one.gain.ms * 1e6) for one in findings],
            "share": [one.share for one in findings],
            "gain_by": [one.gain.words for one in findings],
            "changes": [" ".join(one.gain.changes) for one in findings],
        },
    )


def _evidence(findings: Sequence[Finding]) -> Table:
    rows = [
        (number, event, context, place.module, place.file, -1 if place.line is None else place.line)
        for number, finding in enumerate(findings)
        for place in finding.evidence
        for event, context in [
            *((event, -1) for event in place.events),
            *((-1, context) for context in place.contexts),
        ]
    ]
    names = ("finding", "event", "context", "module", "file", "line")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return Table(EVIDENCE, dict(zip(names, columns, strict=True)))
