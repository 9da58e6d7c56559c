"""The cost of a line in the text: at its end, or above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lsprotocol import types as lsp

from stepscope.lsp.current_costs import Mark
from stepscope.lsp.hover import hover_text


def inlay_hints(
    marks: Iterable[Mark], lines: Sequence[str], codec: Any, wanted: lsp.Range
) -> list[lsp.InlayHint]:
    """A hint at the end of each line with a mark.

    Args:
        marks: of the document.
        lines: of the document as it is now, without their ends.
        codec: counts characters as the client does.
        wanted: the lines asked for.
    """
    return [
        lsp.InlayHint(
            position=lsp.Position(mark.line, codec.client_num_units(lines[mark.line])),
            label=mark.text,
            tooltip=lsp.MarkupContent(lsp.MarkupKind.Markdown, hover_text(mark)),
            padding_left=True,
        )
        for mark in marks
        if mark.shown and wanted.start.line <= mark.line <= wanted.end.line
    ]


def code_lenses(marks: Iterable[Mark]) -> list[lsp.CodeLens]:
    """A lens above each line with a mark."""
    return [
        lsp.CodeLens(
            range=lsp.Range(lsp.Position(mark.line, 0), lsp.Position(mark.line, 0)),
            command=lsp.Command(title=mark.text, command=""),
        )
        for mark in marks
        if mark.shown
    ]
