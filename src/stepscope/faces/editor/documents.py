"""The client's open documents, the latest measurement of each entry file, and their diagnostics."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from attrs import evolve
from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcInvalidParams

from stepscope.errors import BatchError
from stepscope.faces.editor.measuring import FileCosts, Measured, Problem
from stepscope.faces.editor.text_document import BYTE_ORDER_MARK, Document
from stepscope.models.batch_size.site import SiteChoice
from stepscope.models.batch_size.source_files import read_text

_SEVERITY = {
    "critical": lsp.DiagnosticSeverity.Warning,
    "warning": lsp.DiagnosticSeverity.Warning,
    "info": lsp.DiagnosticSeverity.Information,
}

AMBIGUOUS = "ambiguous_batch_size"
Mark = tuple[str, lsp.Diagnostic]  # the path of a file, and what is said at one of its lines


def _of_problem(problem: Problem) -> Iterator[Mark]:
    """Why measuring failed; or each number among which the user must choose."""
    if not problem.candidates:
        yield problem.path, _at(problem.line, problem.message, lsp.DiagnosticSeverity.Error, "measure")
    for site in problem.candidates:
        message = (
            f"{site.name} = {site.value} is one of {len(problem.candidates)} numbers that may be the "
            "batch size; choose one by its quick fix"
        )
        yield site.path, _at(site.line, message, lsp.DiagnosticSeverity.Warning, AMBIGUOUS)


def of_findings(measured: Measured) -> Iterator[Mark]:
    """Findings at their lines; those without a line are at the top of the entry file."""
    for finding in measured.findings:
        severity = _SEVERITY.get(str(finding.get("severity")), lsp.DiagnosticSeverity.Information)
        text = " ".join(str(finding.get(key) or "") for key in ("what", "advice")).strip()
        for path, line in _lines_of(finding) or [(measured.entry, 1)]:
            yield path, _at(line, text, severity, str(finding.get("rule", "")))


def past_indentation(diagnostic: lsp.Diagnostic, lines: Sequence[str]) -> lsp.Diagnostic:
    """The same, where the text of its line begins."""
    start = diagnostic.range.start
    text = lines[start.line] if start.line < len(lines) else ""
    first = lsp.Position(start.line, len(text) - len(text.lstrip()))
    return evolve(diagnostic, range=lsp.Range(first, diagnostic.range.end))


def _lines_of(finding: Mapping[str, Any]) -> list[tuple[str, int]]:
    rows: Iterable[Mapping[str, Any]] = finding.get("evidence") or ()
    known = ((row.get("file"), row.get("line")) for row in rows)
    return list(dict.fromkeys((str(file), int(line)) for file, line in known if file and line))


def _at(line: int, message: str, severity: lsp.DiagnosticSeverity, code: str) -> lsp.Diagnostic:
    start = lsp.Position(max(line - 1, 0), 0)
    end = lsp.Position(max(line - 1, 0), 10_000)  # a client cuts it to the line's end
    return lsp.Diagnostic(
        range=lsp.Range(start, end), message=message, severity=severity, code=code or None, source="stepscope"
    )


def path_of(uri: str) -> str:
    """The file of a document, with symbolic links resolved, so that each file has one name."""
    try:
        # Linux's longest path has 4,096 bytes, each of which may be written as %XX.
        if not isinstance(uri, str) or len(uri) > 3 * 4096:
            raise ValueError("no text, or too long")
        return os.path.realpath(uris.to_fs_path(uri) or uri)  # also of links in a circle
    except ValueError as error:  # a lone surrogate, or a null character
        raise JsonRpcInvalidParams(f"no file can have the URI {str(uri)[:200]!r}") from error


@dataclass(frozen=True)
class OpenDocuments:
    """A snapshot of the documents that the client has open, by path.

    Later changes by the client do not show in it, so another thread may read it.
    """

    documents: Mapping[str, Document]

    def get(self, path: str) -> Document | None:
        return self.documents.get(path) or self.documents.get(os.path.realpath(path))

    def text(self, path: str) -> str:
        """The client's text of a file, else what is on disk; without byte order mark; raises BatchError if
        the file is not open and cannot be read."""
        document = self.get(path)
        return read_text(path) if document is None else _text_of(document)

    def versions(self, files: Iterable[str]) -> tuple[object, ...]:
        """What differs when the text of one of some files does, open or on disk."""
        return tuple(self._version(path) for path in files)

    def _version(self, path: str) -> object:
        document = self.get(path)
        if document is not None:
            return document.version, document.source
        with suppress(OSError):
            status = Path(path).stat()
            return status.st_mtime_ns, status.st_size
        return None

    def unsaved(self) -> dict[str, str]:
        """The texts that differ from the file on disk, by path; reads every open file."""
        texts = {path: _text_of(document) for path, document in self.documents.items()}
        return {path: text for path, text in texts.items() if _on_disk(path) not in (None, text)}


def _text_of(document: Document) -> str:
    return document.source.removeprefix(BYTE_ORDER_MARK)


def _on_disk(path: str) -> str | None:
    with suppress(BatchError):
        return read_text(path)
    return None


@dataclass
class Documents:
    """The latest measurement of each entry file, and the last error of each."""

    measured: dict[str, Measured] = field(default_factory=dict)  # by entry path
    # By entry path; absent once measuring succeeds.
    problems: dict[str, Problem] = field(default_factory=dict)
    # URIs of the client's open documents, by path; a URI may lead through a link.
    open: dict[str, str] = field(default_factory=dict)
    # Which of several batch sizes the user chose, by entry path.
    choices: dict[str, SiteChoice] = field(default_factory=dict)

    def uri_of(self, path: str) -> str:
        return self.open.get(path) or uris.from_fs_path(path) or path

    def entry_of(self, path: str) -> str | None:
        """The entry file that a file belongs to: itself, or one whose measurement covers it."""
        if path in self.measured or path in self.problems:
            return path
        entries = (
            measured.entry
            for measured in self.measured.values()
            if path in measured.files or path in measured.settings
        )
        failed = (entry for entry, problem in self.problems.items() if path in problem.settings)
        return next(chain(entries, failed), None)

    def costs_of(self, path: str) -> FileCosts | None:
        entry = self.entry_of(path)
        measured = self.measured.get(entry) if entry else None
        return measured.files.get(path) if measured else None

    def succeed(self, measured: Measured) -> None:
        self.measured[measured.entry] = measured
        self.problems.pop(measured.entry, None)

    def diagnostics(self) -> dict[str, list[lsp.Diagnostic]]:
        """Diagnostics by path; failures before findings."""
        by_path: dict[str, list[lsp.Diagnostic]] = {}
        marks = (*map(_of_problem, self.problems.values()), *map(of_findings, self.measured.values()))
        for path, diagnostic in chain.from_iterable(marks):
            by_path.setdefault(path, []).append(diagnostic)
        return by_path

    def files(self, entry: str) -> Iterator[str]:
        """The entry file and every file that its measurement covers."""
        yield entry
        if entry in self.measured:
            yield from self.measured[entry].files
            yield from self.measured[entry].settings
        if entry in self.problems:
            yield self.problems[entry].path
            yield from self.problems[entry].settings
