"""Where the batch size of each entry file is written now, and the actions there.

Parsing a long script takes longer than an editor should wait for its menu of actions. So it is done
in a thread, once for each version of the texts, as soon as they change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from lsprotocol import types as lsp

from stepscope.batch_size.site import Site
from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.lsp.code_actions import batch_actions, choice_actions, edit_document, locate_site
from stepscope.lsp.documents import OpenDocuments
from stepscope.lsp.measured_costs import MeasureRequest


@dataclass(frozen=True)
class CurrentSite:
    """The place of a batch size in the current texts, or the candidates for it.

    Attributes:
        sites: one if it is known, several if the user must choose, none if there is none.
        actions: what can be done at each of them.
    """

    sites: tuple[Site, ...] = ()
    actions: tuple[tuple[lsp.CodeAction, ...], ...] = ()

    def actions_at(self, path: str, line: int) -> list[lsp.CodeAction]:
        """The actions on a line from 0 of a file."""
        return [
            action
            for site, actions in zip(self.sites, self.actions, strict=True)
            if (site.path, site.line - 1) == (path, line)
            for action in actions
        ]


class CurrentSites:
    """The current site of each entry file, kept until its texts change."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Hashable, asyncio.Task[CurrentSite]]] = {}

    def find(
        self, entry: str, version: Hashable, search: Callable[[], CurrentSite]
    ) -> asyncio.Task[CurrentSite]:
        """The site of an entry file at a version of its texts; begins a search if it is new.

        Args:
            entry: path of the script.
            version: whatever differs when the answer may.
            search: called in a thread.
        """
        known = self._found.get(entry)
        if known is not None and known[0] == version:
            return known[1]
        task = asyncio.create_task(asyncio.to_thread(search))
        self._found[entry] = (version, task)
        return task


def find_current_site(
    request: MeasureRequest,
    documents: OpenDocuments,
    suggestions: tuple[dict[str, float], ...],
    uri: str,
) -> CurrentSite:
    """Parse the texts.

    Args:
        request: the entry file, its arguments, and which of several batch sizes was chosen.
        documents: what the client has open.
        suggestions: batch sizes to offer.
        uri: of the entry file.
    """
    try:
        site = locate_site(request.entry, documents, request.settings.arguments, request.choice)
    except AmbiguousBatchSize as error:
        sites = tuple(error.candidates)
        return CurrentSite(sites, tuple((one,) for one in choice_actions(sites, uri)))
    except BatchError:
        return CurrentSite()
    try:
        actions = batch_actions(
            site, suggestions, lambda batch: edit_document(documents, site, batch)
        )
    except BatchError:  # the number's file is not open, say: it is known, but cannot be edited
        actions = []
    return CurrentSite((site,), (tuple(actions),))
