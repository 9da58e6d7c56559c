"""Finding operations by their own name and by the names of the raw events inside them."""

from __future__ import annotations

import pytest
from drawings import drawn, names, opened

from stepscope.facts.timeline import Level, Timeline

STEP = """
    main     |  0 100 | ProfilerStep#1
    main     |  0  50 | ## forward ##
    main     |  5  20 | aten::conv2d
    main     |  6   8 | cudaLaunchKernel        | corr=1
    main     | 20  30 | aten::relu
    main     | 50  90 | ## backward ##
    main     | 55  60 | aten::mul_
    main     | 56  57 | cudaLaunchKernel        | corr=2
    main     | 60  80 | aten::mm
    main     | 61  62 | cudaLaunchKernel        | corr=3
    stream 7 | 30  60 | volta_scudnn_winograd   | corr=1
    stream 7 | 60  61 | elementwise_kernel<Mul> | corr=2
    stream 7 | 62  90 | volta_sgemm             | corr=3
"""


@pytest.fixture
def timeline() -> Timeline:
    return drawn(STEP)


def hits(timeline: Timeline, text: str, level: Level) -> dict[str, int]:
    counted = timeline.search(text).hits(level).tolist()
    return dict(zip(names(level), counted, strict=True))


@pytest.mark.parametrize(
    ("text", "total", "found"),
    [
        ("sgemm", 1, {"forward": 0, "backward": 1, "other": 0}),
        ("VOLTA", 2, {"forward": 1, "backward": 1, "other": 0}),
        ("cudaLaunch", 3, {"forward": 1, "backward": 2, "other": 0}),
        ("forward", 1, {"forward": 1, "backward": 0, "other": 0}),
        ("nowhere", 0, {"forward": 0, "backward": 0, "other": 0}),
        ("", 0, {"forward": 0, "backward": 0, "other": 0}),
    ],
)
def test_raw_events_count_for_the_operations_around_them(
    timeline: Timeline, text: str, total: int, found: dict[str, int]
) -> None:
    assert timeline.search(text).total == total
    assert hits(timeline, text, opened(timeline, "step 1")) == found


def test_every_level_down_to_the_event_has_hits(timeline: Timeline) -> None:
    event = list(timeline.trace.events.text("name")).index("volta_sgemm")
    path = timeline.path_of(event)
    search = timeline.search("sgemm")
    for level, part in zip(timeline.levels(path), path.split("/"), strict=False):
        number = level.find(part)
        assert number is not None
        assert search.hits(level)[number] == 1
        assert search.hits(level).sum() == 1


def test_a_steps_hits_are_those_of_its_stages(timeline: Timeline) -> None:
    assert hits(timeline, "cudaLaunch", timeline.level()) == {"step 1": 3}
