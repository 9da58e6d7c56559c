"""Data dependencies between threads and streams, by execution traces of the same run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.graph.drawn import links, step_us

from stepscope.errors import IngestError, TraceError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, data_basis, scale, select, simulate, with_execution_trace
from stepscope.graph.data_flow import data_pairs
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def tensor(text: str) -> list[Any]:
    """`x`, or elements of it as `x[2:5]`, 4 bytes each, as the observer writes it."""
    name, _, span = text.rstrip("]").partition("[")
    first, last = map(int, span.split(":")) if span else (0, 10)
    return [1, 1 + ord(name), first, last - first, 4, "cpu"]


def node(call: int, name: str, reads: str = "", writes: str = "", schema: str = "") -> dict[str, Any]:
    """A node of an execution trace; a `(…)` among its tensors is a list of them."""

    def side(text: str) -> dict[str, Any]:
        groups = re.findall(r"\(([^)]*)\)|(\S+)", text)
        values = [[*map(tensor, many.split())] if many else tensor(one) for many, one in groups]
        kinds = [f"GenericList[{'Tensor(float),' * 2}]" if many else "Tensor(float)" for many, _ in groups]
        return {"values": values, "types": kinds, "shapes": [[]] * len(values)}

    attributes = {"rf_id": call, "op_schema": schema}
    columns = [{"name": key, "type": "", "value": value} for key, value in attributes.items()]
    return {"name": name, "inputs": side(reads), "outputs": side(writes), "attrs": columns}


def written(folder: Path, *nodes: dict[str, Any], pid: int = 1) -> Path:
    path = folder / "et.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": pid, "nodes": nodes}))
    return path


def with_nodes(folder: Path, text: str, *nodes: dict[str, Any]) -> tuple[Trace, Trace]:
    """The trace alone, and with the execution trace; `id=` is the `Record function id`."""
    trace = annotate(drawn_trace(text.replace("id=", "Record_function_id=")))
    return trace, with_execution_trace(trace, written(folder, *nodes))


def scaled(trace: Trace, factor: float, **what: Any) -> Graph:
    graph = build_graph(trace).check()
    return scale(graph, select(graph, **what), factor).check()


# -- threads

BRANCHES = """
    main   |  0 20 | ProfilerStep#0
    main   |  1  5 | trunk  | id=1
    worker |  6 15 | branch | id=2
    main   |  6  8 | own    | id=3
    main   | 16 18 | head   | id=4
    main   | 20 40 | ProfilerStep#1
    main   | 21 25 | trunk  | id=5
    worker | 26 35 | branch | id=6
    main   | 26 28 | own    | id=7
    main   | 36 38 | head   | id=8
    main   | 40 41 | ProfilerStep#2
"""


def branches(folder: Path) -> tuple[Trace, Trace]:
    """A thread computes a branch of the model, of what the main thread gives it and waits for."""
    nodes = (
        node(first + number, *call)
        for first in (1, 5)
        for number, call in enumerate(
            (("trunk", "x", "t"), ("branch", "t", "b"), ("own", "t", "a"), ("head", "a b"))
        )
    )
    return with_nodes(folder, BRANCHES, *nodes)


@pytest.mark.parametrize(
    ("factor", "truth_us"),
    [
        (1, [20, 20]),
        (0.5, [15.5, 15.5]),  # the branch takes 4.5 us less, and the main thread waits so much less
        (0.1, [13, 13]),  # the main thread's own part is longer: the branch ends 7 us before it did
        (2, [29, 29]),
    ],
)
def test_a_thread_waits_for_what_another_one_writes(
    tmp_path: Path, factor: float, truth_us: list[float]
) -> None:
    alone, both = branches(tmp_path)
    assert step_us(scaled(alone, factor, name="branch"))[:2] == [20, 20]  # its order says nothing
    assert step_us(scaled(both, factor, name="branch"))[:2] == truth_us


@pytest.mark.parametrize(("begin", "step"), [(16, 35.5), (22, 35.5), (22.001, 40)])
def test_a_thread_waited_for_what_it_used_soon_after(tmp_path: Path, begin: float, step: float) -> None:
    """It was idle from 8 us on, and the branch ended at 15 us: up to half of its idle time."""
    text = f"""
        main   |  0 40 | ProfilerStep#0
        main   |  1  5 | trunk  | id=1
        worker |  6 15 | branch | id=2
        main   |  6  8 | own    | id=3
        main   | {begin} {begin + 2} | head | id=4
        main   | 40 41 | ProfilerStep#1
    """
    calls = (("trunk", "x", "t"), ("branch", "t", "b"), ("own", "t", "a"), ("head", "a b"))
    _, trace = with_nodes(tmp_path, text, *(node(1 + number, *call) for number, call in enumerate(calls)))
    assert step_us(scaled(trace, 0.5, name="branch"))[0] == step


def test_a_thread_waits_for_what_the_main_thread_gives_it(tmp_path: Path) -> None:
    alone, both = branches(tmp_path)
    assert step_us(scaled(both, 0.5, name="trunk"))[:2] == [18, 18]
    assert step_us(scaled(alone, 0.5, name="trunk"))[:2] == [18, 18]
    assert step_us(scaled(both, 2, name="trunk"))[:2] == [24, 24]


# What the main thread does with the result only later, it did not wait for; but it cannot come first.
LATER = """
    main   |  0 20 | ProfilerStep#0
    worker |  1  4 | copy | id=1
    main   |  1 10 | own  | id=2
    main   | 12 18 | head | id=3
    main   | 20 40 | ProfilerStep#1
    main   | 21 25 | own  | id=4
    main   | 40 41 | ProfilerStep#2
"""


@pytest.mark.parametrize(("factor", "head_us"), [(0.1, 12), (1, 12), (3, 12), (5, 16)])
def test_what_was_written_long_ago_was_not_waited_for(tmp_path: Path, factor: float, head_us: float) -> None:
    nodes = [node(1, "copy", "x", "c"), node(2, "own", "x", "y"), node(3, "head", "c", "z")]
    _, trace = with_nodes(tmp_path, LATER, *nodes)
    graph = scaled(trace, factor, name="copy")
    assert links(graph, "data") == [("copy", "head")]
    names = [*graph.tasks.text("name")]
    assert simulate(graph).start_ns[names.index("head")] == head_us * 1000


# -- streams

STREAMS = """
    main     |  0  50 | ProfilerStep#0
    main     |  1   3 | a | id=1
    main     |  1   2 | cudaLaunchKernel | corr=1
    stream 2 |  3  30 | kernel_a | corr=1
    main     |  4   6 | c | id=2
    main     |  4   5 | cudaLaunchKernel | corr=2
    stream 3 |  6  29 | kernel_c | corr=2
    main     |  7   8 | cudaStreamWaitEvent
    main     |  9  11 | b | id=3
    main     |  9  10 | cudaLaunchKernel | corr=3
    stream 1 | 32  40 | kernel_b | corr=3
    main     | 45  46 | cudaDeviceSynchronize
    main     | 50  60 | ProfilerStep#1
"""


@pytest.mark.parametrize(
    ("needs", "alone_us", "truth_us"),
    [
        ("a", 29, 18.5),  # half of kernel_a ends at 16.5 us, and 2 us later kernel_b begins
        ("a c", 29, 29),  # kernel_c still ends at 29 us
        ("c", 29, 32),  # what kernel_a computes is of no matter
        ("x", 29, 29),  # what no other stream wrote explains nothing: the guess stays
    ],
)
def test_a_stream_waits_for_what_another_one_writes(
    tmp_path: Path, needs: str, alone_us: float, truth_us: float
) -> None:
    nodes = [node(1, "a", "x", "a"), node(2, "c", "x", "c"), node(3, "b", needs, "y")]
    begins = []
    for trace in with_nodes(tmp_path, STREAMS, *nodes):
        graph = scaled(trace, 0.5, name="kernel_a")
        names = [*graph.tasks.text("name")]
        begins.append(simulate(graph).start_ns[names.index("kernel_b")] / 1000)
    assert begins == [alone_us, truth_us]


# -- what is read of an execution trace


CALLED = """
    main   | 0  5 | first  | id=1
    worker | 6  9 | second | id=2
    main   | 7  8 | third  | id=3
"""
ADD_ = "aten::_foreach_add_(Tensor(a!)[] self, Tensor[] other, *, int[2] n=[1, 1]) -> ()"


@pytest.mark.parametrize(
    ("first", "second", "needed"),
    [
        (node(1, "first", "x", "y"), node(2, "second", "y", "z"), True),
        (node(1, "first", "y", "z"), node(2, "second", "y", "w"), False),  # both read
        (node(1, "first", "x", "y[0:5]"), node(2, "second", "y[5:9]", "z"), False),  # other elements
        (node(1, "first", "x", "y[0:5]"), node(2, "second", "y[4:9]", "z"), True),
        (node(1, "first", "(x y) (v w)", "", ADD_), node(2, "second", "y"), True),  # changed in place
        (node(1, "first", "(x y) (v w)", "", ADD_), node(2, "second", "w"), False),
        (node(1, "first", "x", "(u y)"), node(2, "second", "y"), True),
    ],
)
def test_an_operator_needs_what_another_one_wrote_last(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], needed: bool
) -> None:
    _, trace = with_nodes(tmp_path, CALLED, first, second)
    names = [[*trace.events.text("name").take(rows)] for rows in data_pairs(trace)]
    assert names == ([["first"], ["second"]] if needed else [[], []])


def test_a_view_writes_nothing(tmp_path: Path) -> None:
    text = CALLED.replace("third", "aten::view").replace("7  8 ", "5.5 5.8 ").replace("first", "aten::mm")
    view = node(3, "aten::view", "y", "y", "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)")
    _, trace = with_nodes(tmp_path, text, node(1, "aten::mm", "x", "y"), view, node(2, "second", "y"))
    assert [*trace.events.text("name").take(data_pairs(trace)[0])] == ["aten::mm"]


def test_elements_that_are_apart_reach_from_the_first_to_the_last(tmp_path: Path) -> None:
    column = node(1, "first", "", "y[0:2]")  # two elements, five apart
    column["outputs"] |= {"shapes": [[2]], "strides": [[5]]}
    _, trace = with_nodes(tmp_path, CALLED, column, node(2, "second", "y[5:6]"))
    assert len(data_pairs(trace)[0]) == 1


def test_predictions_say_what_they_rest_on(tmp_path: Path) -> None:
    alone, both = branches(tmp_path)
    assert data_basis(alone) == ()
    assert data_basis(both) == ("data dependencies of 8 operators (execution trace et.json)",)
    assert np.array_equal(simulate(build_graph(both)).step_ns, simulate(build_graph(alone)).step_ns)


def with_values(**values: Any) -> str:
    """An execution trace with these values in what its operator writes."""
    odd = node(1, "first", "", "y")
    odd["outputs"] |= values
    return json.dumps({"pid": 1, "nodes": [odd]})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2]", "no execution trace of PyTorch: Expected `object`, got `array`"),
        ("\x1f\x8b", "no execution trace of PyTorch"),
        ('{"pid": 1, "nodes": [{"name": "a"}]}', "no execution trace of PyTorch: 'attrs'"),
        ('{"pid": 2, "nodes": []}', "is of process 2, .* of 1: give one run's"),
        ('{"pid": 1, "nodes": []}', "of 0 operators with the same id, 0 have the same name"),
        (with_values(strides=[["x"]], shapes=[[1 << 40]]), "no execution trace of PyTorch: invalid literal"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "et.json"
    path.write_text(text, "latin-1")
    with pytest.raises((IngestError, TraceError), match=problem):
        with_execution_trace(annotate(drawn_trace(CALLED.replace("id=", "Record_function_id="))), path)


@pytest.mark.parametrize("form", ["y[{0}:{1}]", "y[{0}:99999]"])  # apart, and each within the one before
def test_thousands_of_parts_in_a_piece_of_memory_are_refused(tmp_path: Path, form: str) -> None:
    parts = [tensor(form.format(at, at + 1)) for at in range(4_000)]
    first = node(1, "first", "", f"({' '.join(['y'] * len(parts))})")
    first["outputs"]["values"] = [parts]
    with pytest.raises(TraceError, match="too many parts in a piece of memory"):
        with_nodes(tmp_path, CALLED, first, node(2, "second", "(y)"), node(3, "third", "y"))


def test_a_default_that_never_ends_takes_no_square_of_time(tmp_path: Path) -> None:
    schema = f"first({'=[' * 200_000}) -> ()"
    _, trace = with_nodes(tmp_path, CALLED, node(1, "first", "x", "y", schema), node(2, "second", "y"))
    assert len(data_pairs(trace)[0]) == 1


def test_names_of_another_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="of 3 operators with the same id, 2 have the same name"):
        with_nodes(tmp_path, CALLED, node(1, "first"), node(2, "other"), node(3, "third"))


def test_a_trace_without_ids_fits_none(tmp_path: Path) -> None:
    trace = annotate(drawn_trace("main | 0 5 | aten::mm"))
    with pytest.raises(TraceError, match="its operators have no `Record function id`"):
        with_execution_trace(trace, written(tmp_path))
