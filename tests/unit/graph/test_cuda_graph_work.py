"""Work of CUDA graph launches that the file does not list."""

from __future__ import annotations

from drawn import graph_of, links, starts, step_us, tasks

from stepscope.graph import scale, select
from stepscope.graph.build_graph import NAME

STEP = """
    main     |   0 100 | ProfilerStep#0
    main     |  10  12 | cudaLaunchKernel | corr=7
    main     |  20  24 | cudaGraphLaunch  | corr=8
    main     |  30  32 | cudaLaunchKernel | corr=9
    stream 7 |  20  40 | first            | corr=7
    stream 7 | 150 160 | of_the_graph     | corr=8
    stream 7 | {after} 200 | after        | corr=9
"""


def test_time_before_listed_work_of_a_graph_is_its_work() -> None:
    graph = graph_of(STEP.format(after=160))
    assert tasks(graph, "stream 7") == [
        ("first", 20, 0),
        (NAME, 110, 0),
        ("of_the_graph", 10, 0),
        ("after", 40, 0),
    ]
    assert ("cudaGraphLaunch", NAME) in links(graph, "launch")
    assert step_us(graph) == [200]


def test_time_after_listed_work_of_a_graph_is_its_work() -> None:
    graph = graph_of(STEP.format(after=190))
    assert tasks(graph, "stream 7")[3] == (NAME, 30, 0)
    assert step_us(graph) == [200]


def test_a_graph_without_listed_work_fills_the_gap_between_its_neighbors() -> None:
    lines = STEP.format(after=160).splitlines()
    graph = graph_of("\n".join(line for line in lines if "of_the_graph" not in line))
    # It is launched at 20, follows 10 later at the earliest, and its stream is free at 40.
    assert tasks(graph, "stream 7")[1] == (NAME, 120, 0)
    assert starts(graph)[NAME] == 40


def test_unlisted_work_can_be_selected() -> None:
    graph = graph_of(STEP.format(after=160))
    assert step_us(scale(graph, select(graph, name="work of a CUDA graph*"), 0.5)) == [145]


def test_gaps_shorter_than_a_launch_stay_gaps() -> None:
    text = STEP.replace("150 160", " 45 160").format(after=165)
    assert tasks(graph_of(text), "stream 7") == [("first", 20, 5), ("of_the_graph", 115, 5), ("after", 35, 0)]


def test_without_graph_launches_gaps_stay_gaps() -> None:
    text = STEP.replace("cudaGraphLaunch ", "cudaLaunchKernel").format(after=190)
    assert NAME not in [task[0] for task in tasks(graph_of(text), "stream 7")]
