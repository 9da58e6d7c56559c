"""Setting the batch size where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsprotocol import types as lsp
from pygls.workspace import TextDocument

from stepscope.predict.edit import edit_site
from stepscope.predict.find import find_site
from stepscope.predict.site import Site
from stepscope.serve.language.sizes import size

Open = Callable[[str], TextDocument]  # the document of a path, as the editor has it


def batch_edit(entry: TextDocument, path: str, batch: int, open_: Open) -> tuple[str, lsp.TextEdit]:
    """The edit that sets the batch size of a training script.

    Args:
        entry: the script as the editor has it.
        path: where it lies.
        batch: the new size.
        open_: gives the document that the number is written in, which may be a settings file.

    Returns:
        The URI of the document to edit, and the edit: the number's characters and nothing else.

    Raises:
        AmbiguousBatchSize: there are several; nothing is to be changed.
        BatchError: there is none.
    """
    site = find_site(entry.source, path)
    document = entry if site.path == path else open_(site.path)
    edit = edit_site(document.source, site, batch)
    span = lsp.Range(
        document.client_position_at_offset(edit.start), document.client_position_at_offset(edit.end)
    )
    return document.uri, lsp.TextEdit(span, edit.new)


def batch_actions(
    site: Site,
    suggestions: Iterable[Mapping[str, Any]],
    edit: Callable[[int], tuple[str, lsp.TextEdit]],
) -> list[lsp.CodeAction]:
    """An action for each suggested batch size, the preferred one first."""
    actions: list[lsp.CodeAction] = []
    for suggestion in suggestions:
        batch = int(suggestion["batch"])
        if batch != site.value:
            uri, change = edit(batch)
            actions.append(
                lsp.CodeAction(
                    title=_title(suggestion),
                    kind=lsp.CodeActionKind.RefactorRewrite,
                    edit=lsp.WorkspaceEdit(changes={uri: [change]}),
                    is_preferred=not actions,
                )
            )
    return actions


def _title(suggestion: Mapping[str, Any]) -> str:
    predicted = [f"{suggestion['throughput']:.0f} samples/s"]
    if suggestion.get("bytes"):
        predicted.append(size(suggestion["bytes"]))
    return f"Set batch size to {suggestion['batch']} (predicted {', '.join(predicted)})"
