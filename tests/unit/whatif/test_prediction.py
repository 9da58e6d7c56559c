"""The answer: how it hangs together, its JSON, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from drawn_steps import V100, graph_of
from test_changes import COLLECTIVE, FORWARD

from stepscope.cli.commands import stepscope
from stepscope.whatif import CHANGES, parse_request, predict
from stepscope.whatif.ranking import rank_changes


def test_the_prediction_of_twice_the_bandwidth() -> None:
    answer = predict(graph_of(COLLECTIVE), [parse_request("bandwidth:factor=2", CHANGES)])
    assert answer.measured_step_ms == answer.replayed_step_ms == 0.160
    assert answer.predicted_step_ms == 0.120
    assert answer.speedup == pytest.approx(160 / 120)
    assert answer.range == pytest.approx((0.108, 0.132))
    assert answer.changes == ("bandwidth:factor=2.0",)
    assert any("bound by bandwidth" in text for text in answer.assumptions)


def test_the_parts_add_up_to_the_step_before_and_after() -> None:
    answer = predict(graph_of(FORWARD, devices=V100), [parse_request("amp", CHANGES)]).to_json()
    for side, step in (("before", "replayed_step_ms"), ("after", "predicted_step_ms")):
        assert sum(answer["breakdown"][side].values()) == pytest.approx(answer[step])
        stages = answer["critical_path"][side]["stages"]
        assert sum(stages.values()) == pytest.approx(answer[step])


def test_the_range_holds_the_low_and_the_high_estimate() -> None:
    graph = graph_of(FORWARD, devices=V100)
    fusion = predict(graph, [parse_request("kernel_fusion", CHANGES)])
    assert fusion.range == pytest.approx((0.137, 0.162))


def test_delays_without_a_cause_are_told_and_widen_the_range() -> None:
    graph = graph_of("""
        main     |   0 100 | ProfilerStep#0
        main     |  10  12 | cudaLaunchKernel | corr=7
        main     |  12  14 | cudaLaunchKernel | corr=8
        main     |  14  16 | cudaLaunchKernel | corr=9
        main     |  16  18 | cudaLaunchKernel | corr=10
        stream 7 |  20  60 | first            | corr=7
        stream 7 | 105 115 | second           | corr=8
        stream 7 | 115 120 | third            | corr=9
        stream 7 | 120 125 | fourth           | corr=10
    """)
    # As the others do, the second would follow at once: the last ends at 80, the CPU at 100.
    answer = predict(graph, [])
    assert answer.replay_error == 0
    assert answer.range == pytest.approx((0.125 * 0.8, 0.125 * 1.2))
    assert "20.0% of the step are delays without a known cause; they stay as they are" in (
        answer.assumptions
    )


def test_without_a_change_the_prediction_is_the_replay() -> None:
    answer = predict(graph_of(FORWARD), [])
    assert answer.predicted_step_ms == answer.replayed_step_ms
    assert answer.speedup == 1


def test_the_ranking_is_by_gain_and_tells_what_does_not_apply() -> None:
    gains, reasons = rank_changes(graph_of(FORWARD, devices=V100))
    times = [one.predicted_step_ms for one in gains]
    assert times == sorted(times)
    assert gains[0].changes == ("amp",)
    assert reasons["bandwidth"] == "no collective in these steps"
    assert "scale" not in reasons


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace file of one step with a long kernel."""
    events = [
        _event("user_annotation", "ProfilerStep#0", 1, 0, 100),
        _event("cuda_runtime", "cudaLaunchKernel", 1, 10, 5, correlation=7),
        _event("kernel", "sgemm", 7, 20, 180, correlation=7, device=0, stream=7),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def _event(
    category: str, name: str, thread: int, start: int, length: int, **arguments: int
) -> dict:
    return {"ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 1,
            "tid": thread, "ts": start, "dur": length, "args": arguments}  # fmt: skip


def test_the_command_answers_in_json_with_the_keys_of_the_design(file: Path) -> None:
    change = "scale:select=kind=gemm,factor=0.5"
    result = CliRunner().invoke(stepscope, ["whatif", str(file), change, "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert list(answer) == [
        "measured_step_ms", "replayed_step_ms", "replay_error", "predicted_step_ms", "speedup",
        "range", "changes", "assumptions", "breakdown", "critical_path",
    ]  # fmt: skip
    assert answer["measured_step_ms"] == 0.2
    assert answer["predicted_step_ms"] == 0.11


def test_the_command_answers_in_text(file: Path) -> None:
    change = "scale:select=kind=gemm,factor=0.5"
    result = CliRunner().invoke(stepscope, ["whatif", str(file), change])
    assert "predicted       0.110 ms, 1.82x (0.110 to 0.110 ms)" in result.stdout
    assert "only device                0.085       0.000" not in result.stdout


def test_without_a_change_the_command_says_so(file: Path) -> None:
    text = CliRunner().invoke(stepscope, ["whatif", str(file)]).stdout
    assert "1.00x" in text
    assert text.splitlines()[2].endswith("no change")
    assert "  none " not in text  # time of no stage, of which there is none here


def test_a_gain_within_its_own_error_is_no_praise(file: Path) -> None:
    bandwidth = [parse_request("bandwidth:factor=1.05", CHANGES)]
    assert not predict(graph_of(COLLECTIVE), bandwidth).is_certain
    twice = [parse_request("bandwidth:factor=2", CHANGES)]
    assert predict(graph_of(COLLECTIVE), twice).is_certain
    doubt = "(the range holds the step as it is)"
    for factor, doubted in ((1, True), (0.5, False), (2, False)):
        change = f"scale:select=kind=gemm,factor={factor}"
        result = CliRunner().invoke(stepscope, ["whatif", str(file), change])
        assert (doubt in result.stdout) == doubted


def test_the_ranking_says_which_gains_are_within_their_error(tmp_path: Path) -> None:
    # Two elementwise kernels in a row: as one they take as long as both, or as their mean.
    events = [
        _event("user_annotation", "ProfilerStep#0", 1, 0, 100),
        _event("user_annotation", "## forward ##", 1, 5, 60),
    ]
    for number in (1, 2):
        begin, place = 20 * number, {"correlation": number, "device": 0, "stream": 7}
        events += [
            _event("cuda_runtime", "cudaLaunchKernel", 1, 10 * number, 5, correlation=number),
            _event("kernel", "vectorized_elementwise_kernel", 7, 40 + begin, 20, **place),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    lines = CliRunner().invoke(stepscope, ["whatif", str(path), "--rank"]).stdout.splitlines()
    (fusion,) = (line for line in lines if "ms  kernel_fusion" in line)
    assert fusion.endswith("(the range holds the step as it is)")


def test_a_change_that_does_not_apply_ends_with_its_reason(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "bandwidth"])
    assert result.exit_code == 2
    assert result.stderr == "Error: bandwidth: no collective in these steps\n"


def test_a_rank_that_is_not_there_is_refused(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--of-rank", "3"])
    assert result.exit_code == 2
    assert "expected a rank of [0], found 3" in result.stderr


def test_the_command_ranks_what_applies(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--rank", "--json"])
    answer = json.loads(result.stdout)
    assert answer["not_applicable"]["bandwidth"] == "no collective in these steps"
    assert "scale" not in answer["not_applicable"]


def test_the_list_names_every_change(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--list", "--json"])
    assert [one["name"] for one in json.loads(result.stdout)] == list(CHANGES)
