"""The notifications by which an editor keeps a server's documents up to date."""

from __future__ import annotations

from typing import Any

from soak_clients.edited_document import Document
from soak_clients.lsp_client import Connection


def open_document(client: Connection, document: Document) -> None:
    """Open a document with its whole text."""
    item = {"uri": document.uri, "languageId": "python", "version": document.version}
    client.notify("textDocument/didOpen", {"textDocument": item | {"text": document.text}})


def close_document(client: Connection, document: Document) -> None:
    """Close it."""
    client.notify("textDocument/didClose", at(document))


def change(client: Connection, document: Document, changes: list[dict[str, Any]]) -> None:
    """Change it; the document has its new version and text."""
    named = {"uri": document.uri, "version": document.version}
    client.notify("textDocument/didChange", {"textDocument": named, "contentChanges": changes})


def next_version(document: Document) -> Document:
    """The document, with its next version."""
    document.version += 1
    return document


def at(document: Document) -> dict[str, Any]:
    """What names a document in a request."""
    return {"textDocument": {"uri": document.uri}}


def place(line: int, character: int) -> dict[str, int]:
    """A position."""
    return {"line": line, "character": character}
