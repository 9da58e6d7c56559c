"""What is wrong, at its line: why measuring failed, and what the analyzer found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lsprotocol import types as lsp

from stepscope.serve.language.costs import Measured, Problem

_SEVERITY = {
    "critical": lsp.DiagnosticSeverity.Warning,
    "warning": lsp.DiagnosticSeverity.Warning,
    "info": lsp.DiagnosticSeverity.Information,
}


def failure(problem: Problem) -> lsp.Diagnostic:
    """Why measuring failed."""
    return _at(problem.line, problem.message, lsp.DiagnosticSeverity.Error, "measure")


def findings_by_file(measured: Measured) -> dict[str, list[lsp.Diagnostic]]:
    """What the analyzer found, by the file whose line it names; others are at the entry's top."""
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


def past_indentation(told: lsp.Diagnostic, lines: Sequence[str]) -> lsp.Diagnostic:
    """The same, where the text of its line begins.

    Args:
        told: spans a whole line.
        lines: of the document as it is now.
    """
    start = told.range.start
    text = lines[start.line] if start.line < len(lines) else ""
    first = lsp.Position(start.line, len(text) - len(text.lstrip()))
    return lsp.Diagnostic(
        range=lsp.Range(first, told.range.end),
        message=told.message,
        severity=told.severity,
        code=told.code,
        source=told.source,
    )


def _lines_of(finding: Mapping[str, Any]) -> list[tuple[str, int]]:
    places: Iterable[Mapping[str, Any]] = finding.get("evidence") or ()
    known = ((one.get("file"), one.get("line")) for one in places)
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
