"""Kernels replayed from CUDA graphs get the module, stage and line of what was captured."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from generated_graphs import Recording, recording, write
from tiers import family

import stepscope
from stepscope.analyze.source_places import PlaceFinder
from stepscope.errors import IngestError
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.cuda_graphs import replayed
from stepscope.facts.contexts import build_contexts
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def attributed(trace: Trace, truth: dict[float, tuple[str, int]]) -> dict[str, int]:
    """Replayed time, ns, whose module and line are those of the captured operator, others, or unknown."""
    rows = np.flatnonzero(replayed(trace))
    assert len(rows) == len(truth)
    events, places, result = trace.events, PlaceFinder(trace), {"right": 0, "wrong": 0, "unknown": 0}
    for row, module in zip(rows.tolist(), modules_of(trace), strict=True):
        begin = round((int(events["start_ns"][row]) + trace.metadata.origin_ns) / 1000, 3)
        line = places.of(np.array([row]), 1)[0].line
        pairs = list(zip((module, line), truth[begin], strict=True))
        wrong = any(known and known != true for known, true in pairs)
        whole = all(known == true for known, true in pairs)
        result["wrong" if wrong else "right" if whole else "unknown"] += int(events["duration_ns"][row])
    return result


def modules_of(trace: Trace) -> list[str]:
    """The path of the module of each piece of replayed work."""
    paths = [*trace["modules"].text("path"), ""]
    return [paths[module] or "" for module in trace.events["module"][replayed(trace)].tolist()]


def warnings_of(trace: Trace) -> dict[str, str]:
    return {row["code"]: row["message"] for row in trace["warnings"].rows()}


def in_one_trace(tmp_path: Path, made: Recording) -> Trace:
    return stepscope.open(write(tmp_path / "one.json", made.capture + made.replay), cache=False)


def in_two_files(tmp_path: Path, made: Recording) -> Trace:
    capture = write(tmp_path / "capture.json", made.capture)
    return stepscope.open(write(tmp_path / "replay.json", made.replay), graph_capture=capture, cache=False)


def in_a_capture(tmp_path: Path, made: Recording) -> Trace:
    """The capture as another run of `stepscope run` recorded it."""
    manifest = Path(__file__).parents[3] / "fuzz/corpus/manifest/plain.json"
    with zipfile.ZipFile(tmp_path / "captured.stepscope", "w") as archive:
        archive.writestr("manifest.json", manifest.read_bytes())
        archive.writestr("modules.json", '{"roots": []}')
        archive.writestr("trace.json", write(tmp_path / "capture.json", made.capture).read_bytes())
    replay = write(tmp_path / "replay.json", made.replay)
    return stepscope.open(replay, graph_capture=tmp_path / "captured.stepscope", cache=False)


@pytest.mark.parametrize("seeds", family([range(12), range(12, 100)], 1), ids=str)
def test_a_hundred_generated_graphs(seeds: range, tmp_path: Path) -> None:
    """What is not right is unknown, and a warning counts it; in one trace as in two files."""
    ways = in_one_trace, in_two_files, in_a_capture
    total = {"right": 0, "wrong": 0, "unknown": 0}
    for seed in seeds:
        made = recording(seed)
        trace = ways[seed % len(ways)](tmp_path, made)
        times = attributed(trace, made.truth)
        total = {name: total[name] + times[name] for name in total}
        assert ("graph_replays" in warnings_of(trace)) == (times["unknown"] > 0)
    assert total["wrong"] == 0
    assert total["right"] >= 0.98 * sum(total.values())


def test_stages_follow_the_capture(tmp_path: Path) -> None:
    made = recording(3)
    trace = in_two_files(tmp_path, made)
    rows = np.flatnonzero(replayed(trace) & (trace.events["module"] >= 0))
    assert set(trace.events.text("stage").take(rows)) == {"forward"}
    assert {row["evidence"] for row in trace["modules"].rows()} == {"captured"}
    assert sum(trace["modules"]["forward_device_ns"]) > 0


def test_the_tree_of_contexts_has_the_frames_of_the_capture(tmp_path: Path) -> None:
    nodes = build_contexts(in_two_files(tmp_path, recording(3))).nodes
    assert {"forward", "aten::attention"} <= set(nodes.text("name"))


def test_a_replay_without_its_capture_says_what_is_missing(tmp_path: Path) -> None:
    trace = stepscope.open(write(tmp_path / "replay.json", recording(3).replay), cache=False)
    hint = "the file shows no capture; give the trace of its capture with the option graph-capture"
    assert hint in warnings_of(trace)["graph_replays"]


def test_equal_captures_that_differ_in_lines_are_not_guessed(tmp_path: Path) -> None:
    """Two captures of equal shape, of which one was replayed: what they agree on is known."""
    made = recording(3)
    other = [
        dict(e, ts=e["ts"] - 10_000, name=e["name"].replace("model.py", "other.py")) for e in made.capture
    ]
    capture = write(tmp_path / "capture.json", other + made.capture)
    trace = stepscope.open(write(tmp_path / "replay.json", made.replay), graph_capture=capture, cache=False)
    assert {row: time for row, time in attributed(trace, made.truth).items() if time}.keys() == {"unknown"}
    assert all(modules_of(trace))
    assert "several that differ do" in warnings_of(trace)["graph_replays"]


REPLAY = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  20 | cudaGraphLaunch | corr=7
    stream 7 | 30  50 | triton_poi_0    | corr=7 graph_id=4 graph_node_id=17179869185
    stream 7 | 50  60 | triton_poi_0    | corr=7 graph_id=4 graph_node_id=17179869186{annotation}
"""


def test_annotations_of_pytorch_name_modules(tmp_path: Path) -> None:
    drawn = drawn_trace(REPLAY.format(annotation=' module__fqn="layers.1.mlp"'))
    trace = annotate(drawn)
    assert modules_of(trace) == ["", "layers.1.mlp"]
    assert [row["path"] for row in trace["modules"].rows()] == ["layers", "layers.1", "layers.1.mlp"]


STEP = """
    main     |   0 100 | cudaStreamBeginCapture
    main     |   2  20 | model.py(3): forward
    main     |   3  19 | nn.Module: Linear_0
    main     |   4  18 | aten::linear                                      | seq=1
    main     |   5   6 | cudaLaunchKernel                                  | corr=1
    main     |   8   9 | cudaLaunchKernel                                  | corr=2
    autograd |  30  50 | autograd::engine::evaluate_function: MmBackward0  | seq=1 fwd=1
    autograd |  35  36 | cudaLaunchKernel                                  | corr=3
    main     | 100 102 | cudaStreamEndCapture
    main     | 200 400 | ProfilerStep#0
    main     | 210 220 | cudaGraphLaunch                                   | corr=9
    stream 7 | 230 250 | gemm                                              | corr=9
    stream 7 | 250 260 | gemm                                              | corr=9
    stream 7 | 260 290 | gemm                                              | corr=9
"""


def two_lines(kernel: str) -> str:
    """Two captured launches of different lines, and a replay of two kernels."""
    return f"""
        main     |   0 100 | cudaStreamBeginCapture
        main     |   1  20 | model.py(3): attend
        main     |   5   6 | cudaLaunchKernel | corr=1
        main     |  21  40 | model.py(9): project
        main     |  25  26 | cudaLaunchKernel | corr=2
        main     | 100 102 | cudaStreamEndCapture
        main     | 210 220 | cudaGraphLaunch  | corr=9
        stream 7 | 230 250 | gemm             | corr=9 {kernel}1
        stream 7 | 250 260 | gemm             | corr=9 {kernel}2
    """


def test_one_kernel_of_two_lines_is_two_places() -> None:
    trace = annotate(drawn_trace(two_lines("graph_node_id=1844674407370955161")))
    places = PlaceFinder(trace).of(np.flatnonzero(replayed(trace)), steps=1)
    assert [(place.file, place.line, place.count) for place in places] == [
        ("model.py", 3, 1),
        ("model.py", 9, 1),
    ]


def test_more_graphs_than_captures_are_not_all_of_these() -> None:
    """A graph that was captured before the recording may look like one that was captured in it."""
    other = """
        main     | 310 320 | cudaGraphLaunch  | corr=10
        stream 7 | 330 350 | gemm             | corr=10 graph_id=5 graph_node_id=21474836481
        stream 7 | 350 360 | gemm             | corr=10 graph_id=5 graph_node_id=21474836482
    """
    drawn = two_lines("graph_id=4 graph_node_id=1717986918")
    assert "graph_replays" not in warnings_of(annotate(drawn_trace(drawn)))
    assert "no capture" in warnings_of(annotate(drawn_trace(drawn + other)))["graph_replays"]


def test_backward_has_the_module_and_line_of_its_forward() -> None:
    trace = annotate(drawn_trace(STEP))
    rows, places = np.flatnonzero(replayed(trace)), PlaceFinder(trace)
    assert [*trace.events.text("stage").take(rows)] == ["forward", "forward", "backward"]
    assert modules_of(trace) == ["Linear_0"] * 3
    assert {(one.file, one.line) for one in places.of(rows, 1)} == {("model.py", 3)}


def test_a_file_without_a_capture_is_refused(tmp_path: Path) -> None:
    replay = write(tmp_path / "replay.json", recording(3).replay)
    with pytest.raises(IngestError, match="shows no capture of a CUDA graph"):
        stepscope.open(replay, graph_capture=replay, cache=False)


def test_commands_take_the_trace_of_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was kept is of one capture."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    made = recording(3)
    replay = str(write(tmp_path / "replay.json", made.replay))
    capture = str(write(tmp_path / "capture.json", made.capture))
    asked = ["report", replay], ["report", replay, "--graph-capture", capture]
    reports = [CliRunner().invoke(stepscope_command, arguments).output for arguments in (*asked, *asked)]
    assert ["with the option graph-capture" in " ".join(report.split()) for report in reports] == [
        True,
        False,
    ] * 2
    assert ["Attention_0" in report for report in reports] == [False, True] * 2
    assert reports[2:] == reports[:2]


def test_one_iteration_of_a_server(traces: Path) -> None:
    """The capture and the replay of a server on an MI300X: every kernel, in its own stage."""
    folder = traces / "cuda_graph_vllm"
    trace = stepscope.open(
        folder / "graph_execution.json.gz", graph_capture=folder / "graph_capture.json.gz", cache=False
    )
    rows, places = np.flatnonzero(replayed(trace)), PlaceFinder(trace)
    assert len(rows) == 421
    assert (trace.events["module"][rows] >= 0).all()
    files = {one.file.partition("/")[0] for one in places.of(rows, 1)}
    assert files == {"aiter", "triton_kernels", "vllm"}
    assert set(trace.events.text("stage").take(rows)) == {"decode"}
    assert not warnings_of(trace)
