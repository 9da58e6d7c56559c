"""The answer: how it hangs together, its JSON, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from drawn_steps import V100, graph_of
from msgspec import to_builtins
from test_changes import COLLECTIVE, FORWARD

from stepscope.errors import ChangeError
from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.annotate import annotate
from stepscope.graph import build_graph
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.models.whatif.ranking import notes_of, rank_changes
from stepscope.testing import drawn_trace


def test_the_prediction_of_twice_the_bandwidth() -> None:
    answer = predict(graph_of(COLLECTIVE), [parse_request("bandwidth:factor=2", CHANGES)])
    assert answer.measured_step_ms == answer.replayed_step_ms == 0.160
    assert answer.predicted_step_ms == 0.120
    assert answer.speedup == pytest.approx(160 / 120)
    # How much of its 80 us is a fixed cost is not known: from nothing to all of it.
    assert answer.range == pytest.approx((0.108, 0.176))
    assert answer.changes == ("bandwidth:factor=2.0",)
    assert any("bandwidth-bound but for a fixed cost" in text for text in answer.assumptions)


def test_the_parts_add_up_to_the_step_before_and_after() -> None:
    answer = to_builtins(predict(graph_of(FORWARD, devices=V100), [parse_request("amp", CHANGES)]))
    # The CPU works from 0 to 100, the device from 22 to 162, and with `amp` until the CPU has ended.
    before, after = (list(answer["breakdown"][side].values()) for side in ("before", "after"))
    assert before == pytest.approx([0.022, 0.062, 0.078, 0])
    assert after == pytest.approx([0.045, 0, 0.055, 0])
    for side, step in (("before", "replayed_step_ms"), ("after", "predicted_step_ms")):
        assert sum(answer["breakdown"][side].values()) == pytest.approx(answer[step])
        stages = answer["critical_path"][side]["stages"]
        assert sum(stages.values()) == pytest.approx(answer[step])


def test_the_range_holds_the_low_and_the_high_estimate() -> None:
    graph = graph_of(FORWARD, devices=V100)
    fusion = predict(graph, [parse_request("kernel_fusion", CHANGES)])
    assert fusion.range == pytest.approx((0.137, 0.162))


def test_no_change_saves_what_later_steps_do_not_pay() -> None:
    """The first launch of `mul` loads it for 40 ms; the three elementwise kernels take 0.1 ms each."""
    answer = predict(
        graph_of("""
            main     |     0 50000 | ProfilerStep#1
            main     |    10    20 | aten::add       
            main     |    10    20 | cudaLaunchKernel | corr=1
            main     |    30 40030 | aten::mul
            main     |    30 40030 | cudaLaunchKernel | corr=2
            main     | 40040 40050 | aten::silu
            main     | 40040 40050 | cudaLaunchKernel | corr=3
            main     | 40060 50000 | cudaDeviceSynchronize
            stream 7 |    20   120 | vectorized_elementwise_kernel_add  | corr=1
            stream 7 | 40040 40140 | vectorized_elementwise_kernel_mul  | corr=2
            stream 7 | 40140 40240 | vectorized_elementwise_kernel_silu | corr=3
        """),
        [parse_request("kernel_fusion", CHANGES)],
    )
    assert answer.measured_step_ms == 50.0
    assert answer.replayed_step_ms == pytest.approx(10.0, abs=0.1)
    assert answer.one_off_ms == pytest.approx(50.0 - answer.replayed_step_ms)
    assert answer.replay_error == pytest.approx(0.0)
    assert answer.replayed_step_ms - answer.predicted_step_ms <= 0.3


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
    assert "20.0% of the step is unexplained and kept as is" in (answer.assumptions)


def test_a_gain_that_differs_from_step_to_step_widens_the_range() -> None:
    """Loading takes 10, 20 and 30 of 80, 90 and 100 us: 20 in the mean, 95 % of it within 24.8."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    answer = predict(
        graph_of(f"""
            main |   0  80 | ProfilerStep#0
            main |   0  10 | {loader}
            main |  10  80 | aten::mm
            main |  80 170 | ProfilerStep#1
            main |  80 100 | {loader}
            main | 100 170 | aten::mm
            main | 170 270 | ProfilerStep#2
            main | 170 200 | {loader}
            main | 200 270 | aten::mm
        """),
        [parse_request("dataloader", CHANGES)],
    )
    half = 4.303 * 0.010 / 3**0.5  # Student's t of two degrees of freedom
    assert answer.predicted_step_ms == pytest.approx(0.070)
    assert answer.range == pytest.approx((0.070 - half, 0.070 + half))
    assert not answer.is_certain


def test_no_step_is_shorter_than_the_work_of_a_stream_however_much_gains_differ() -> None:
    """Loading takes 100, 200 and 300 us, and the kernel of each step 70."""
    lines, begin = [], 0
    for step, loads in enumerate((100, 200, 300)):
        ready, end = begin + loads, begin + loads + 80
        lines += [
            f"main | {begin} {end} | ProfilerStep#{step}",
            f"main | {begin} {ready} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            f"main | {ready} {ready + 5} | cudaLaunchKernel | corr={step + 1}",
            f"main | {ready + 5} {end} | cudaDeviceSynchronize",
            f"stream 7 | {ready + 5} {ready + 75} | sgemm | corr={step + 1}",
        ]
        begin = end
    answer = predict(graph_of("\n".join(lines)), [parse_request("dataloader", CHANGES)])
    assert answer.predicted_step_ms == pytest.approx(0.080)
    assert answer.range == pytest.approx((0.070, 0.080 + 4.303 * 0.100 / 3**0.5))  # Student's t


def test_without_the_cpu_a_faster_device_may_save_nothing() -> None:
    """As where only kernels are left in a trace: the CPU may have needed all of the time."""
    lines = [f"main | {1000 * step} {1000 * (step + 1)} | ProfilerStep#{step}" for step in range(3)]
    lines += [f"stream 7 | {1000 * step} {1000 * step + 900} | ampere_sgemm" for step in range(3)]
    answer = predict(graph_of("\n".join(lines), devices=V100), [parse_request("faster_gpu", CHANGES)])
    assert answer.predicted_step_ms < 0.9
    assert answer.range is not None
    assert answer.range[1] >= 1.0
    assert "the CPU, which the trace does not show, keeps pace with the device" in answer.assumptions


def test_without_a_change_the_prediction_is_the_replay() -> None:
    answer = predict(graph_of(FORWARD), [])
    assert answer.predicted_step_ms == answer.replayed_step_ms
    assert answer.speedup == 1


def test_the_ranking_is_by_gain_and_tells_what_does_not_apply() -> None:
    ranking = rank_changes(graph_of(FORWARD, devices=V100))
    gains, reasons = ranking.gains, ranking.reasons
    times = [one.predicted_step_ms for one in gains]
    assert times == sorted(times)
    assert gains[0].changes == ("amp",)
    assert reasons["bandwidth"] == "these steps have no collectives"
    assert "scale" not in reasons


def test_without_all_device_work_no_gain_is_ranked() -> None:
    """The wait is for a graph whose kernels the recorder lost; the file shows only a copy."""
    lost = """
        main     |  0 100 | ProfilerStep#0
        main     | 10  20 | cudaMemcpyAsync | corr=1
        main     | 20  30 | cudaGraphLaunch | corr=2
        main     | 30  95 | cudaDeviceSynchronize
        stream 7 | 22  24 | Memcpy HtoD     | corr=1
    """
    ranking = rank_changes(build_graph(annotate(drawn_trace(lost)), 0))
    assert ranking.gains == []
    assert ranking.notes == ["1 of 1 graph launches lack some recorded device work"]


def test_predictions_for_one_of_several_steps_say_so() -> None:
    trace = annotate(drawn_trace("main | 0 100 | ProfilerStep#0\nmain | 100 400 | ProfilerStep#1"))
    (note,) = notes_of(trace, 0, 1)
    assert note == (
        "predictions are for step 1 alone, which is 50% longer than the mean of 2 steps; "
        "for all they may differ"
    )
    assert notes_of(trace, 0, None) == []


def test_changes_that_only_want_a_calibration_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", "off")
    on_a_cpu = """
        main | 0    1000 | ProfilerStep#0
        main | 100   300 | aten::mm                | seq=1
        main | 400   700 | Optimizer.step#Adam.step
        main | 410   690 | aten::add_
    """
    ranking = rank_changes(build_graph(annotate(drawn_trace(on_a_cpu, framework="pytorch")), 0))
    assert ranking.unmeasured == ["amp", "fused_optimizer"]
    assert "stepscope calibrate" in ranking.reasons["amp"]
    assert "faster_gpu" in ranking.reasons


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


def _event(category: str, name: str, thread: int, start: int, length: int, **arguments: int) -> dict:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0 if category == "kernel" else 1,
        "tid": thread,
        "ts": start,
        "dur": length,
        "args": arguments,
    }


def test_the_command_names_the_best_combination_and_why_others_are_out(file: Path) -> None:
    best = json.loads(CliRunner().invoke(stepscope, ["whatif", str(file), "--best", "--json"]).stdout)
    assert best["prediction"]["changes"] == [part["change"] for part in best["parts"]]
    assert best["not_applicable"]["compress"] == "these steps have no all-reduces; put ddp first"
    assert not {"faster_gpu", "bandwidth", "no_straggler"} & {*best["left_out"], *best["not_applicable"]}
    text = CliRunner().invoke(stepscope, ["whatif", str(file), "--best", "--to", "0.01"]).stdout
    no_gain = "0.200 ms: no change saves more than its error\n\n1 combination was predicted\n"
    assert text.startswith(f"nothing that was tried reaches 0.01 ms\n{no_gain}")
    refused = CliRunner().invoke(stepscope, ["whatif", str(file), "--to", "5"])
    assert (refused.exit_code, "--to is a goal of --best" in refused.stderr) == (2, True)


def test_the_command_answers_in_json_with_the_keys_of_the_design(file: Path) -> None:
    change = "scale:select=kind=gemm,factor=0.5"
    result = CliRunner().invoke(stepscope, ["whatif", str(file), change, "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert list(answer) == [
        "measured_step_ms",
        "replayed_step_ms",
        "replay_error",
        "predicted_step_ms",
        "speedup",
        "range",
        "changes",
        "basis",
        "assumptions",
        "breakdown",
        "critical_path",
        "device_busy_ms",
        "device_idle_ms",
        "memory",
        "one_off_ms",
        "host_ms",
    ]
    assert (answer["device_busy_ms"], answer["device_idle_ms"]) == pytest.approx((0.18, 0.02))
    assert answer["memory"] is None  # no allocation was recorded
    assert answer["measured_step_ms"] == 0.2
    assert answer["predicted_step_ms"] == 0.11


def test_the_command_answers_in_text(file: Path) -> None:
    change = "scale:select=kind=gemm,factor=0.5"
    result = CliRunner().invoke(stepscope, ["whatif", str(file), change])
    measured = "measured        0.200 ms per step, device busy 0.180 ms, idle 0.020 ms"
    assert measured in result.stdout
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
    assert not predict(graph_of(COLLECTIVE), twice).is_certain  # all of it may be a fixed cost
    known = [parse_request("bandwidth:factor=2,latency_us=20", CHANGES)]
    assert predict(graph_of(COLLECTIVE), known).is_certain
    doubt = "(within the error: the range includes the unchanged step)"
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
    lines = CliRunner().invoke(stepscope, ["whatif", str(path), "--all"]).stdout.splitlines()
    (fusion,) = (line for line in lines if "ms  kernel_fusion" in line)
    assert fusion.endswith("(within the error: the range includes the unchanged step)")


def test_a_change_that_does_not_apply_ends_with_its_reason(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "bandwidth"])
    assert result.exit_code == 2
    assert result.stderr == "Error: bandwidth: these steps have no collectives\n"


def test_a_rank_that_is_not_there_is_refused(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--rank", "3"])
    assert result.exit_code == 2
    assert "there is no rank 3; the trace has 0" in result.stderr


def test_the_command_ranks_what_applies(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--all", "--json"])
    answer = json.loads(result.stdout)
    assert answer["not_applicable"]["bandwidth"] == "these steps have no collectives"
    assert "scale" not in answer["not_applicable"]


def test_the_list_names_every_change(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "--list", "--json"])
    assert [one["name"] for one in json.loads(result.stdout)] == list(CHANGES)


def test_what_is_not_predicted_is_two_lines_and_each_gain_has_its_basis(tmp_path: Path) -> None:
    events = [
        _event("user_annotation", "ProfilerStep#0", 1, 0, 100),
        _event("user_annotation", "enumerate(DataLoader)#_Single.__next__", 1, 5, 30),
        _event("cpu_op", "aten::mm", 1, 40, 50),
    ]
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    lines = CliRunner().invoke(stepscope, ["whatif", str(path), "--all"]).stdout.splitlines()
    assert lines[0].split()[-1] == "dataloader"
    assert "upper bound" in lines[1]
    assert len(lines) == 4
    assert lines[2].startswith("run `stepscope calibrate FILE` on the same machine to predict: amp")
    assert lines[3].startswith("not applicable: channels_last, compile, cudnn_benchmark, faster_gpu")


def test_a_device_that_the_file_does_not_name_is_given(file: Path) -> None:
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "faster_gpu"])
    assert "the trace does not name its device; name it with the option device" in result.stderr
    words = ["whatif", str(file), "faster_gpu", "--device", "A100", "--json"]
    answer = json.loads(CliRunner().invoke(stepscope, words).stdout)
    assert answer["changes"] == ["faster_gpu:to=H100"]
    assert answer["predicted_step_ms"] == 0.1  # what the CPU takes
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "amp", "--device", "H100"])
    assert "amp: no matrix product or convolution runs in 32 bits" in result.stderr
    result = CliRunner().invoke(stepscope, ["whatif", str(file), "amp", "--device", "H1"])
    assert (result.exit_code, "unknown device 'H1'" in result.stderr) == (2, True)


def test_no_slower_device_is_offered() -> None:
    def offered(name: str) -> str:
        graph = graph_of(FORWARD, devices=({"id": 0, "name": name},))
        return predict(graph, [parse_request("faster_gpu", CHANGES)]).changes[0]

    assert offered("Tesla V100-SXM2-16GB") == "faster_gpu:to=H100"
    assert offered("NVIDIA H100 80GB HBM3") != "faster_gpu:to=H100"
    with pytest.raises(ChangeError, match="no known device runs these kernels faster than MI300X"):
        offered("AMD Instinct MI300X")


def test_one_step_says_what_a_loop_that_does_not_wait_for_its_device_takes() -> None:
    """Loading takes 60 us of the CPU, and the device works 50 us after the CPU has ended."""
    rows = [(100 * n, f"ProfilerStep#{n + 3}", f"corr={n + 1}") for n in range(3)]
    text = "\n".join(
        f"main | {at} {at + 100} | {name}\n"
        f"main | {at + 80} {at + 85} | cudaLaunchKernel | {launch}\n"
        f"stream 7 | {at + 90} {at + 150} | sgemm | {launch}"
        for at, name, launch in rows
    )
    change = [parse_request("scale:select=kind=gemm,factor=0.9", CHANGES)]
    trace = annotate(drawn_trace(text))
    alone, together = (predict(build_graph(trace, steps=steps), change) for steps in ((3, 3), (3, 5)))
    said = [text for text in alone.assumptions if text.startswith("one step alone")]
    assert said == [
        "one step alone counts until its device work ends; if the next step does not wait for that, "
        "steps take 0.1 ms, and 0.1 ms with the change"
    ]
    assert not any(text.startswith("one step alone") for text in together.assumptions)
