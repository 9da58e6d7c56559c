"""Edits and actions that set the batch size in a document that the client has open.

An edit is bound to the version of the document that it was computed for, and to the characters that
it replaces. Where the client has another version, or other characters, nothing changes.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp

from stepscope.base.numbers import rounded, size
from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.faces.editor.documents import OpenDocuments
from stepscope.faces.editor.measuring import MeasureRequest
from stepscope.faces.editor.text_document import BYTE_ORDER_MARK, Document
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.site import Site, SiteChoice, edit_site

MEASURE_COMMAND = "stepscope.measureFile"
CANCEL_COMMAND = "stepscope.cancelFile"
CHOOSE_COMMAND = "stepscope.chooseBatchSize"
MEASURE_TITLE = "Measure this file with stepscope"


@dataclass(frozen=True)
class DocumentEdit:
    """One replacement in one version of a document, which must have the expected characters there."""

    uri: str
    version: int
    range: lsp.Range
    expected: str
    new_text: str

    def to_workspace_edit(self) -> lsp.WorkspaceEdit:
        """The same for `workspace/applyEdit` and code actions; a client refuses other versions."""
        document = lsp.OptionalVersionedTextDocumentIdentifier(uri=self.uri, version=self.version)
        edits = [lsp.TextEdit(self.range, self.new_text)]
        return lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(document, edits)])


class DocumentNotOpen(BatchError):
    """The number is in a file that the client has not opened, so its text there is unknown."""


def locate_site(
    entry: str, documents: OpenDocuments, arguments: Sequence[str] = (), choice: SiteChoice | None = None
) -> Site:
    """The batch size of a training script, in the texts that the client has.

    Raises:
        AmbiguousBatchSize: there are several candidates.
        BatchError: there is none, or a file cannot be read.
    """
    folder = str(Path(entry).parent)
    text = documents.text(entry)
    try:
        site = find_site(text, entry, arguments, choice, folder=folder, read=documents.text)
    except AmbiguousBatchSize as error:
        candidates = [_resolved(candidate) for candidate in error.candidates]
        raise AmbiguousBatchSize(str(error), candidates) from error
    return _resolved(site)


def _resolved(site: Site) -> Site:
    return site.at(path=os.path.realpath(site.path))


def edit_document(documents: OpenDocuments, site: Site, batch: int) -> DocumentEdit:
    """The edit that sets the batch size at a site; raises DocumentNotOpen if the client has not opened the
    site's file, BatchError if more than the number would change."""
    document = documents.get(site.path)
    if document is None or document.version is None:
        message = f"the batch size is in {site.path}; open that file, then set it again"
        raise DocumentNotOpen(message, site.path)
    mark = len(BYTE_ORDER_MARK) if document.source.startswith(BYTE_ORDER_MARK) else 0
    edit = edit_site(document.source[mark:], site, batch)
    return _in_client_units(document, edit.start + mark, edit.end + mark, edit.old, edit.new)


def _in_client_units(document: Document, start: int, end: int, expected: str, new: str) -> DocumentEdit:
    span = lsp.Range(document.client_position_at_offset(start), document.client_position_at_offset(end))
    first = document.offset_at_position(span.start)
    if document.source[first : document.offset_at_position(span.end)] != expected:
        raise BatchError(f"{document.path} has no {expected} where it should be; nothing changed")
    assert document.version is not None
    return DocumentEdit(document.uri, document.version, span, expected, new)


def batch_actions(
    site: Site, suggestions: Iterable[Mapping[str, Any]], edit: Callable[[int], DocumentEdit]
) -> list[lsp.CodeAction]:
    offered = [each for each in suggestions if int(each["batch"]) != site.value]
    return [
        lsp.CodeAction(
            title=_title(suggestion),
            kind=lsp.CodeActionKind.RefactorRewrite,
            edit=edit(int(suggestion["batch"])).to_workspace_edit(),
            is_preferred=suggestion is offered[0],
        )
        for suggestion in offered
    ]


def choice_actions(candidates: Sequence[Site], uri: str) -> list[lsp.CodeAction]:
    """For each candidate, the action that makes it the batch size of an entry file."""
    return [
        lsp.CodeAction(
            title=f"Use {site.name} = {site.value} as the batch size",
            kind=lsp.CodeActionKind.QuickFix,
            command=lsp.Command(
                title="Choose the batch size",
                command=CHOOSE_COMMAND,
                arguments=[uri, asdict(SiteChoice.of(site, candidates))],
            ),
        )
        for site in candidates
    ]


def measure_action(uri: str) -> lsp.CodeAction:
    command = lsp.Command(title="Measure this file", command=MEASURE_COMMAND, arguments=[uri])
    return lsp.CodeAction(title=MEASURE_TITLE, kind=lsp.CodeActionKind.Source, command=command)


def _title(suggestion: Mapping[str, Any]) -> str:
    predicted = [f"{_range(suggestion)} samples/s"]
    if suggestion.get("bytes"):
        predicted.append(size(suggestion["bytes"]))
    return f"Set batch size to {suggestion['batch']} (predicted {', '.join(predicted)})"


def _range(suggestion: Mapping[str, Any]) -> str:
    low, high = suggestion.get("throughput_range") or (None, None)
    if low is None or high is None or rounded(low) == rounded(high):
        return rounded(suggestion["throughput"])
    return f"{rounded(low)} to {rounded(high)}"


# What can be done at the place of a batch size: one if it is known, several if the user must choose.
CurrentSites = list[tuple[Site, list[lsp.CodeAction]]]


def find_current_sites(
    request: MeasureRequest, documents: OpenDocuments, suggestions: tuple[dict[str, float], ...], uri: str
) -> CurrentSites:
    """The place of a batch size in the current texts, or the candidates for it."""
    try:
        site = locate_site(request.entry, documents, request.settings.arguments, request.choice)
    except AmbiguousBatchSize as error:
        chosen = choice_actions(error.candidates, uri)
        return [(site, [action]) for site, action in zip(error.candidates, chosen, strict=True)]
    except BatchError:
        return []
    try:
        actions = batch_actions(site, suggestions, lambda batch: edit_document(documents, site, batch))
    except BatchError:  # the number's file is not open, say: it is known, but cannot be edited
        actions = []
    return [(site, actions)]
