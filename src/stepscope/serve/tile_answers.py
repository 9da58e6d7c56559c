"""Several tiles of the time axis in one answer: a move of the axis needs one for each track."""

from __future__ import annotations

import msgspec

from stepscope.errors import ServeError
from stepscope.serve.axis_answers import Slices, slices
from stepscope.serve.counter_answers import CounterTile, counter
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView

MOST = 32  # a request more lets others go first


class Tiles(msgspec.Struct):
    """Tiles of tracks and of counters, each in the order in which they were asked for.

    Attributes:
        slices: as `slices` answers.
        counters: as `counter` answers.
    """

    slices: list[Slices]
    counters: list[CounterTile]


def tiles(view: TraceView, query: Query) -> Tiles:
    """What several tiles show of tracks and of counters.

    Query:
        wanted: at most 32 tiles as `id:zoom:tile`, separated by commas; ids as `axis` has them.
    """
    wanted = [one for one in query.text("wanted").split(",") if one]
    if len(wanted) > MOST:
        raise ServeError(f"expected at most {MOST} tiles, found {len(wanted)}")
    answer, counters = Tiles([], []), view.time_axis.counters
    for one in wanted:
        id, *place = one.rsplit(":", 2)
        if len(place) < 2:
            raise ServeError(f"expected tiles as id:zoom:tile, found {one[:40]!r}")
        numbers = dict(zip(("zoom", "tile"), place, strict=True))
        if id in counters:
            answer.counters.append(counter(view, Query({"counter": id, **numbers})))
        else:
            answer.slices.append(slices(view, Query({"track": id, **numbers})))
    return answer
