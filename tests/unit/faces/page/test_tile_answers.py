"""Several tiles of the time axis in one answer."""

from __future__ import annotations

import pytest
from serving import ask, opened

from stepscope.errors import ServeError
from stepscope.faces.page.axis_answers import MOST
from stepscope.faces.page.trace_view import TraceView


@pytest.fixture(scope="module")
def trace() -> TraceView:
    return opened()


def test_tiles_are_what_each_request_answers_in_the_order_asked(trace: TraceView) -> None:
    axis = ask(trace, "axis")
    tracks = [one["id"] for one in axis["tracks"]]
    counters = [one["id"] for one in axis["counters"]]
    assert len(tracks) > 1
    assert counters
    places = [(id, zoom, (1 << zoom) - 1) for id in [*counters, *reversed(tracks)] for zoom in (0, 2)]
    wanted = ",".join(":".join(map(str, place)) for place in places)
    alone = {"slices": [], "counters": []}
    for id, zoom, tile in places:
        if id in counters:
            alone["counters"].append(ask(trace, "counter", counter=id, zoom=zoom, tile=tile))
        else:
            alone["slices"].append(ask(trace, "slices", track=id, zoom=zoom, tile=tile))
    assert ask(trace, "tiles", wanted=wanted) == alone


def test_none_are_asked_for(trace: TraceView) -> None:
    assert ask(trace, "tiles") == {"slices": [], "counters": []}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("t0", "expected tiles as id:zoom:tile, found 't0'"),
        ("t0:1", "expected tiles as id:zoom:tile"),
        ("lost:0:0", "expected the id of a track, found 'lost'"),
        ("lost:x:0", "expected the id of a track"),
        (":0:0,", ""),
        (",".join(["x:0:0"] * (MOST + 1)), "expected at most 32 tiles, found 33"),
    ],
)
def test_what_is_no_tile_is_refused(trace: TraceView, wanted: str, why: str) -> None:
    if not why:  # an empty id is the first track, as for one tile
        assert len(ask(trace, "tiles", wanted=wanted)["slices"]) == 1
        return
    with pytest.raises(ServeError, match=why):
        ask(trace, "tiles", wanted=wanted)


@pytest.mark.parametrize("place", ["x:0", "0:x", "0:-1", "99:0", "0:1"])
def test_a_place_must_be_on_the_axis(trace: TraceView, place: str) -> None:
    track = ask(trace, "axis")["tracks"][0]["id"]
    with pytest.raises(ServeError, match="expected"):
        ask(trace, "tiles", wanted=f"{track}:{place}")
