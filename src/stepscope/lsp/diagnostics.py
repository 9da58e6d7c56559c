"""Diagnostics at their lines: failed measurements, and findings of the analyzer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lsprotocol import types as lsp

from stepscope.lsp.measured_costs import Measured, Problem

_SEVERITY = {
    "critical": lsp.DiagnosticSeverity.Warning,
    "warning": lsp.DiagnosticSeverity.Warning,
    "info": lsp.DiagnosticSeverity.Information,
}

AMBIGUOUS = "ambiguous_batch_size"


def failure(problem: Problem) -> lsp.Diagnostic:
    """The diagnostic of a failed measurement."""
    return _at(problem.line, problem.message, lsp.DiagnosticSeverity.Error, "measure")


def ambiguous(problem: Problem) -> dict[str, list[lsp.Diagnostic]]:
    """A diagnostic at each number among which the user must choose, by file."""
    found: dict[str, list[lsp.Diagnostic]] = {}
    count = len(problem.candidates)
    for site in problem.candidates:
        message = (
            f"{site.name} = {site.value} is one of {count} numbers that may be the batch size; "
            "choose one by its quick fix"
        )
        one = _at(site.line, message, lsp.DiagnosticSeverity.Warning, AMBIGUOUS)
        found.setdefault(site.path, []).append(one)
    return found


def findings_by_file(measured: Measured) -> dict[str, list[lsp.Diagnostic]]:
    """Findings by the file of their line; those without a line are at the top of the entry file."""
    found: dict[str, list[lsp.Diagnostic]] = {}
    for finding in measured.findings:
        for path, line in _lines_of(finding) or [(measured.entry, 1)]:
            severity = _SEVERITY.get(
                str(finding.get("severity")), lsp.DiagnosticSeverity.Information
            )
            text = " ".join(str(finding.get(key) or "") for key in ("what", "advice")).strip()
            one = _at(line, text, severity, str(finding.get("rule", "")))
            found.setdefault(path, []).append(one)
    return found


def past_indentation(diagnostic: lsp.Diagnostic, lines: Sequence[str]) -> lsp.Diagnostic:
    """The same, where the text of its line begins.

    Args:
        diagnostic: spans a whole line.
        lines: of the document as it is now.
    """
    start = diagnostic.range.start
    text = lines[start.line] if start.line < len(lines) else ""
    first = lsp.Position(start.line, len(text) - len(text.lstrip()))
    return lsp.Diagnostic(
        range=lsp.Range(first, diagnostic.range.end),
        message=diagnostic.message,
        severity=diagnostic.severity,
        code=diagnostic.code,
        source=diagnostic.source,
    )


def _lines_of(finding: Mapping[str, Any]) -> list[tuple[str, int]]:
    rows: Iterable[Mapping[str, Any]] = finding.get("evidence") or ()
    known = ((one.get("file"), one.get("line")) for one in rows)
    return list(dict.fromkeys((str(file), int(line)) for file, line in known if file and line))


def _at(line: int, message: str, severity: lsp.DiagnosticSeverity, code: str) -> lsp.Diagnostic:
    start = lsp.Position(max(line - 1, 0), 0)
    end = lsp.Position(max(line - 1, 0), 10_000)  # a client cuts it to the line's end
    return lsp.Diagnostic(
        range=lsp.Range(start, end),
        message=message,
        severity=severity,
        code=code or None,
        source="stepscope",
    )
