"""What the page is told of memory over time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from serving import ask, opened

from stepscope.errors import ServeError
from stepscope.faces.page.export_answers import KeyedAnswer, report_of
from stepscope.faces.page.single_file import add_memory
from stepscope.faces.page.trace_view import TraceView

sys.path.append(str(Path(__file__).parents[2] / "models/memory"))
from drawn_memory import STEP, with_allocations

ALLOCATIONS = """
    cpu    |   7 195 | 1000
    cpu    |  16 139 | 4000
    cpu    |  46 119 | 2000
    cuda:0 |  17   - |  512
"""


@pytest.fixture
def view() -> TraceView:
    return TraceView(with_allocations(STEP, ALLOCATIONS))


def test_a_trace_without_memory_says_how_to_record_it() -> None:
    view = opened()
    assert not ask(view, "overview")["has"]["memory"]
    with pytest.raises(ServeError, match="record it with stepscope run --memory"):
        ask(view, "memory")


def test_devices_gpus_first_with_what_their_memory_can_be_divided_by(view: TraceView) -> None:
    told = ask(view, "memory")
    assert ask(view, "overview")["has"]["memory"]
    gpu, cpu = told["devices"]
    assert (gpu["id"], gpu["peak_bytes"], gpu["peak_ns"]) == ("cuda:0", 512, 17_000)
    assert (cpu["id"], cpu["peak_bytes"], cpu["peak_ns"]) == ("cpu", 7000, 46_000)
    by = {one["by"]: one for one in cpu["groupings"]}
    paths = [view.trace["modules"].text("path")[id] for id in by["module"]["modules"] if id >= 0]
    assert paths == ["net.first", "net.second"] == [name for name in by["module"]["names"] if name]
    assert told["end_ns"] == 200_000
    assert told["tile_ns"] >= told["end_ns"]


def test_a_tile_shows_each_change(view: TraceView) -> None:
    tile = ask(view, "memory_tile", device="cpu")
    assert tile["exact"]
    assert tile["start_ns"] == [0, 7000, 16_000, 46_000, 119_000, 139_000, 195_000]
    assert [sum(column) for column in zip(*tile["held"], strict=True)] == [0, 1000, 5000, 7000, 5000, 1000, 0]
    later = ask(view, "memory_tile", device="cpu", zoom=1, tile=1)
    assert [sum(column) for column in zip(*later["held"], strict=True)] == [5000, 1000, 0]


def test_a_moment_lists_what_lives_then(view: TraceView) -> None:
    told = ask(view, "memory_moment", device="cpu", time=50_000)
    assert told["used_bytes"] == 7000
    assert [(one["module"], one["bytes"], one["count"]) for one in told["living"]] == [
        ("net.first", 4000, 1),
        ("net.second", 2000, 1),
        ("", 1000, 1),
    ]
    assert (told["segments"], told["reserved_bytes"]) == ([], 0)
    assert ask(view, "memory_moment", device="cpu")["time_ns"] == 46_000  # the peak


def test_a_row_has_the_stack_of_its_largest_allocation() -> None:
    step = """
        main |  0 200 | ProfilerStep#0
        main | 10  90 | ## forward ##
        main | 12  30 | stepscope.lines: net.py:3
        main | 15  20 | aten::mm
        main | 40  60 | stepscope.lines: net.py:7
        main | 45  50 | aten::mm
    """
    allocations = "cpu | 16 - | 1000\ncpu | 46 - | 6000\ncpu | 47 - | 5000"
    told = ask(TraceView(with_allocations(step, allocations)), "memory_moment")
    rows = [(row["bytes"], row["largest"], row["stack"]) for row in told["living"]]
    assert (told["frames"], rows) == (["net.py:7", "net.py:3"], [(11_000, 6000, [0]), (1000, 1000, [1])])


@pytest.mark.parametrize("by", ["kind", "module"])
def test_the_rows_of_all_groups_are_those_of_the_moment(view: TraceView, by: str) -> None:
    about = ask(view, "memory")["devices"][1]
    names = next(one["names"] for one in about["groupings"] if one["by"] == by)
    parts = [
        ask(view, "memory_moment", device="cpu", time=50_000, by=by, group=group)["living"]
        for group in range(len(names))
    ]
    assert all(one[by] == name for name, rows in zip(names, parts, strict=True) for one in rows)
    whole = ask(view, "memory_moment", device="cpu", time=50_000)["living"]
    assert sum(map(len, parts)) == len(whole)


@pytest.mark.parametrize(
    ("request_", "query", "message"),
    [
        ("memory_tile", {"device": "cuda:9"}, "expected one of cuda:0, cpu, found 'cuda:9'"),
        ("memory_tile", {"by": "color"}, "expected one of kind"),
        ("memory_tile", {"zoom": 40}, "expected zoom up to"),
        ("memory_moment", {"group": 99}, "expected a group below"),
    ],
)
def test_what_is_not_there_is_refused(
    view: TraceView, request_: str, query: dict[str, object], message: str
) -> None:
    with pytest.raises(ServeError, match=message):
        ask(view, request_, **query)


def test_the_verdict_of_a_device(view: TraceView) -> None:
    assert ask(view, "memory")["devices"][1]["verdict"].endswith("of it.")


def test_a_single_file_holds_tiles_and_moments(view: TraceView) -> None:
    found: dict[str, object] = {}

    def add(*answers: KeyedAnswer) -> bool:
        found.update(answers)
        return True

    left_out = add_memory(add, report_of(view, None, None, []))
    assert left_out == ["what lives at most moments of the memory"]
    assert "memory_tile?by=kind&device=cpu&tile=0&zoom=0" in found
    assert "memory_moment?device=cpu" in found
    assert sum(key.startswith("memory_moment?device=cpu&time=") for key in found) == 60


def test_a_single_file_without_room_says_so(view: TraceView) -> None:
    left_out = add_memory(lambda *answers: False, report_of(view, None, None, []))
    assert left_out == ["the memory over time"]
    assert add_memory(lambda *answers: True, report_of(opened(), None, None, [])) == []
