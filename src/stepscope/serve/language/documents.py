"""What is known of each open file: its measured costs, its entry, its problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lsprotocol import types as lsp
from pygls import uris

from stepscope.serve.language.costs import FileCosts, Measured, Problem
from stepscope.serve.language.problems import failure, findings_by_file


def path_of(uri: str) -> str:
    """The file of a document, its links followed, so that one file has one name."""
    return str(Path(uris.to_fs_path(uri) or uri).resolve())


@dataclass
class Documents:
    """The latest measurement of each entry file, and what went wrong with the last one.

    Attributes:
        measured: by entry path.
        problems: by entry path; absent once measuring succeeds.
        open: what the editor calls its open documents, by path; it may have come to one by a link.
    """

    measured: dict[str, Measured] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    def uri_of(self, path: str) -> str:
        """What the editor calls a file."""
        return self.open.get(path) or uris.from_fs_path(path) or path

    def entry_of(self, path: str) -> str | None:
        """The entry file whose measurement or failure tells of a file; itself where it is one."""
        if path in self.measured or path in self.problems:
            return path
        return next((one.entry for one in self.measured.values() if path in one.files), None)

    def costs_of(self, path: str) -> FileCosts | None:
        """The measured costs of a file."""
        entry = self.entry_of(path)
        measured = self.measured.get(entry) if entry else None
        return measured.files.get(path) if measured else None

    def succeed(self, measured: Measured) -> None:
        """Take over a new measurement."""
        self.measured[measured.entry] = measured
        self.problems.pop(measured.entry, None)

    def fail(self, entry: str, problem: Problem) -> None:
        """Remember why measuring failed; what was measured before stays, as stale as it is."""
        self.problems[entry] = problem

    def diagnostics(self) -> dict[str, list[lsp.Diagnostic]]:
        """What to say of each file, by path; failures before findings."""
        found: dict[str, list[lsp.Diagnostic]] = {}
        for problem in self.problems.values():
            found.setdefault(problem.path, []).append(failure(problem))
        for measured in self.measured.values():
            for path, told in findings_by_file(measured).items():
                found.setdefault(path, []).extend(told)
        return found

    def files(self, entry: str) -> Iterator[str]:
        """The entry and every file that its measurement tells of."""
        yield entry
        yield from self.measured[entry].files if entry in self.measured else ()
