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


AREA = """
    main     |  0 100 | ProfilerStep#1
    main     |  1  40 | aten::mm
    main     |  2   3 | cudaMemcpyAsync  | corr=1
    main     |  4   5 | cudaLaunchKernel | corr=2
    stream 7 | 10  60 | Memcpy HtoD | corr=1
    stream 8 | 40  80 | sgemm       | corr=2
"""


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("name", [("Memcpy HtoD", 1, 50_000), ("sgemm", 1, 40_000)]),
        ("kind", [("memcpy", 1, 50_000), ("gemm", 1, 40_000)]),
        ("track", [("stream 7", 1, 50_000), ("stream 8", 1, 40_000)]),
        ("step", [("1", 2, 90_000)]),
        ("category", [("memcpy", 1, 50_000), ("kernel", 1, 40_000)]),
        ("parent", [("", 2, 90_000)]),
        ("correlation", [("1", 1, 50_000), ("2", 1, 40_000)]),
    ],
)
def test_the_work_of_an_area_by_any_column(by: str, groups: list[tuple[str, int, int]]) -> None:
    view = opened(AREA)
    found = ask(view, "area", by=by)["groups"]
    assert [(one["name"], one["count"], one["ns"]) for one in found] == groups
    for column in ask(view, "area")["columns"]:
        assert sum(one["ns"] for one in ask(view, "area", by=column)["groups"]) == 90_000, column


def test_an_area_by_no_column_is_refused(trace: TraceView) -> None:
    with pytest.raises(ServeError, match=r"expected by as one of parent, .* found 'start_ns'"):
        ask(trace, "area", by="start_ns")


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
