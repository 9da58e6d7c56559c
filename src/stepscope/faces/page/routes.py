"""Every request that the page can make about a trace, and the function that answers it.

The server and the single file both use this table. The return type of each function is the answer;
`scripts/api_docs.py` generates the page's types and the reference from it.
"""

from collections.abc import Callable

import msgspec

from stepscope.errors import ServeError
from stepscope.faces.page.axis_answers import area, axis, counter, slices, tiles
from stepscope.faces.page.context_answers import context_findings, contexts
from stepscope.faces.page.diff_answers import diff, pair
from stepscope.faces.page.finding_answers import findings
from stepscope.faces.page.memory_answers import memory, memory_moment, memory_tile
from stepscope.faces.page.operation_details import details
from stepscope.faces.page.pane_answers import select
from stepscope.faces.page.query_answers import query, schema
from stepscope.faces.page.report_answers import arrivals, collectives, kernels, modules, overview
from stepscope.faces.page.requests import Query
from stepscope.faces.page.source_answers import source, sources
from stepscope.faces.page.timeline_answers import (
    level,
    levels,
    levels_inside,
    path,
    search,
    search_hits,
    trace,
)
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import best, changes, whatif

_ANSWERS: tuple[Callable[[TraceView, Query], msgspec.Struct], ...] = (
    *(overview, levels, level, levels_inside, axis, slices, counter, tiles, area, path, search, search_hits),
    *(modules, kernels, collectives, arrivals, findings, contexts, context_findings),
    *(memory, memory_tile, memory_moment, diff, pair, changes, whatif, best),
    *(details, select, sources, source, trace, schema, query),
)
ROUTES = {function.__name__: function for function in _ANSWERS}


def answer(view: TraceView, name: str, asked: Query) -> msgspec.Struct:
    """The answer to a request; raises StepscopeError if there is no such request, or its parameters are
    wrong."""
    if name not in ROUTES:
        raise ServeError(f"expected one of {', '.join(ROUTES)}, found {name[:40]!r}", 404)
    return ROUTES[name](view, asked)
