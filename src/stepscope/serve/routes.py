"""Every question that the page can ask about a trace, and the function that answers it.

The server and the single file both answer by this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.errors import ServeError
from stepscope.serve.contexts import context_findings, contexts
from stepscope.serve.details import details
from stepscope.serve.findings import findings
from stepscope.serve.levels import level, levels, names, path, search, trace
from stepscope.serve.opened import OpenTrace
from stepscope.serve.panes import select
from stepscope.serve.query import Query
from stepscope.serve.sources import source, sources
from stepscope.serve.tables import kernels, modules, overview
from stepscope.serve.whatif import changes, whatif

ROUTES: dict[str, Callable[[OpenTrace, Query], dict[str, Any]]] = {
    "overview": overview,
    "levels": levels,
    "level": level,
    "path": path,
    "search": search,
    "names": names,
    "modules": modules,
    "kernels": kernels,
    "findings": findings,
    "contexts": contexts,
    "context_findings": context_findings,
    "changes": changes,
    "whatif": whatif,
    "details": details,
    "select": select,
    "sources": sources,
    "source": source,
    "trace": trace,
}


def answer(opened: OpenTrace, name: str, query: Query) -> dict[str, Any]:
    """What the page is told.

    Raises:
        StepscopeError: if there is nothing of that name, or the question is wrong.
    """
    if name not in ROUTES:
        raise ServeError(f"expected one of {', '.join(ROUTES)}, found {name[:40]!r}", 404)
    return ROUTES[name](opened, query)
