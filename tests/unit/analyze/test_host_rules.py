"""Rules on steps of a CPU alone, drawn: what they must not say."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_findings import found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.analyze.analysis import analysis_of
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace


def calls(name: str, count: int, first: float, each: float = 5) -> str:
    """Operators in a row."""
    starts = [first + number * each for number in range(count)]
    return "\n".join(f"main | {at} {at + each - 1} | {name}" for at in starts)


UPDATE = """
    main | 0 1000 | ProfilerStep#0
    main | 10 100 | autograd::engine::evaluate_function: MmBackward0
    main | 110 119 | aten::_foreach_norm
    main | 120 900 | Optimizer.step#{name}.step
"""


def test_clipping_gradients_is_no_part_of_the_update() -> None:
    finding = found("optimizer_loop", UPDATE.format(name="AdamW") + calls("aten::mul_", 100, 130))
    assert finding is not None
    assert "one parameter at a time. A Python loop starts 100 operators per step" in finding.what
    assert finding.gain.ms == pytest.approx(0.78)  # all of Optimizer.step


def test_an_optimizer_of_sparse_gradients_has_no_faster_form_and_does_not_count() -> None:
    text = UPDATE.format(name="SparseAdam") + calls("aten::mul_", 100, 130)
    assert found("optimizer_loop", text) is None
    also = f"main | 905 990 | Optimizer.step#AdamW.step\n{calls('aten::add_', 40, 906, 2)}"
    finding = found("optimizer_loop", f"{text}\n{also}")
    assert finding is not None
    assert finding.what.startswith("AdamW ")
    assert "40 operators" in finding.what


def test_an_optimizer_that_only_calls_others_is_not_counted_again() -> None:
    inner = f"main | 120 600 | Optimizer.step#Adam.step\n{calls('aten::mul_', 60, 130)}"
    text = f"main | 110 950 | Optimizer.step#CombinedOptimizer.step\n{inner}\n{calls('aten::norm', 40, 610)}"
    findings = apply_rules(
        RuleContext(annotate(drawn_trace(f"main | 0 1000 | ProfilerStep#0\n{text}"))), RULES
    )
    mine = [one.what for one in findings if one.rule == "optimizer_loop"]
    assert len(mine) == 1
    assert mine[0].startswith("Adam updates the weights")
    assert "60 operators" in mine[0]


def test_each_update_is_judged_by_what_its_class_can_do() -> None:
    # RMSprop takes longer, and no option makes it faster on a CPU: Adam's own time counts.
    rms = f"main | 120 600 | Optimizer.step#RMSprop.step\n{calls('aten::sqrt', 60, 130)}"
    adam = f"main | 610 910 | Optimizer.step#Adam.step\n{calls('aten::add_', 40, 620)}"
    finding = found("optimizer_loop", f"main | 0 1000 | ProfilerStep#0\n{rms}\n{adam}")
    assert finding is not None
    assert finding.what.startswith("Adam updates the weights")
    assert "40 operators" in finding.what
    assert finding.gain.ms == pytest.approx(0.3)


def test_classes_that_can_be_fused_are_one_finding() -> None:
    first = f"main | 120 400 | Optimizer.step#SGD.step\n{calls('aten::add_', 30, 130)}"
    other = f"main | 410 910 | Optimizer.step#Adam.step\n{calls('aten::add_', 40, 420)}"
    finding = found("optimizer_loop", f"main | 0 1000 | ProfilerStep#0\n{first}\n{other}")
    assert finding is not None
    assert finding.what.startswith("Adam and SGD update the weights")
    assert finding.gain.ms == pytest.approx(0.78)


CLOSURE = """
    main | 0 1000 | ProfilerStep#0
    main | 10 910 | Optimizer.step#AdamW.step
    main | 12 700 | [pl][profile]run_training_step
    main | 20 300 | aten::linear | seq=1
    main | 300 690 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
"""


def test_what_a_closure_runs_in_the_step_of_an_optimizer_is_no_part_of_its_update() -> None:
    """Lightning gives the whole training step to `Optimizer.step`."""
    finding = found("optimizer_loop", CLOSURE + calls("aten::sqrt", 40, 710))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.2, abs=0.002)


def test_an_update_by_hand_has_no_optimizer_to_compile() -> None:
    text = UPDATE.format(name="AdamW").replace("Optimizer.step#AdamW.step", "## optimizer ##")
    finding = found("optimizer_loop", text + calls("aten::sub_", 100, 130))
    assert finding is not None
    assert "optimizer.step" not in finding.advice


def test_lbfgs_works_on_one_vector_and_not_on_parameter_after_parameter() -> None:
    text = UPDATE.format(name="LBFGS") + calls("aten::mul_", 100, 130)
    assert found("optimizer_loop", text) is None


def test_numbers_that_the_optimizer_reads_are_not_the_scripts() -> None:
    own = UPDATE.format(name="AdamW") + calls("aten::item", 100, 130)
    assert found("synchronizing_calls", own) is None
    clipping = found("synchronizing_calls", own.replace("120 900 |", "920 925 |"))
    assert clipping is not None
    assert "clip_grad_norm_" in clipping.advice


def reads(*between: str, late: int = 0) -> str:
    """A step of 1 ms that reads a value every 20 us, after one of `between` in turn; the last is late."""
    lines = [f"main | 0 {1000 + late} | ProfilerStep#0"]
    for turn in range(40):
        at = 10 + 20 * turn
        more = late * (turn == 39)
        lines.append(f"main | {at} {at + 15 + more} | {between[turn % len(between)]}")
        lines.append(f"main | {at + 16 + more} {at + 17 + more} | aten::item")
    return "\n".join(lines)


def test_a_loop_around_reads_costs_what_its_iterations_take() -> None:
    loop = found("synchronizing_calls", reads("aten::argmax", "aten::eq"))
    assert loop is not None
    assert loop.gain.ms == pytest.approx(0.78, rel=0.02)  # the last ends with its read


def test_an_iteration_that_lost_its_core_is_one_of_the_loop() -> None:
    loop = found("synchronizing_calls", reads("aten::argmax", "aten::eq", late=2000))
    assert loop is not None
    assert loop.gain.ms == pytest.approx(2.8, rel=0.02)


def test_a_loop_that_calls_the_model_costs_what_its_reads_take() -> None:
    """An agent that chooses one action after the other, and checks of arguments in between."""
    played = found("synchronizing_calls", reads("aten::addmm", "aten::argmax"))
    assert played is not None
    assert "clip_grad_norm_" not in played.advice
    assert played.gain.ms == pytest.approx(0.04)


def test_reads_here_and_there_cost_what_they_take_themselves() -> None:
    """As the checks of arguments in a program of many distributions."""
    various = found("synchronizing_calls", reads(*(f"aten::own_{n}" for n in range(40))))
    assert various is not None
    assert various.gain.ms == pytest.approx(0.04)


def test_the_first_event_of_a_file_calls_no_operator() -> None:
    context = RuleContext(annotate(drawn_trace("main | 0 10 | aten::add_\nmain | 20 30 | aten::mul_")))
    rows = context.search.find(category="cpu_op")
    assert context.search.innermost_operators(rows).tolist() == [0, 1]


VIEWS = """
    main | 0 1000 | ProfilerStep#0
    main | 10 {forward_end} | aten::{name} | seq=1
    main | 100 900 | autograd::engine::evaluate_function: {node}Backward0 | seq=1 fwd=1
    main | 110 890 | {node}Backward0 | seq=1 fwd=1
"""


def test_a_view_has_no_form_with_a_cheaper_gradient() -> None:
    view = found("forward_backward", VIEWS.format(name="slice", node="Slice", forward_end=12))
    other = found("forward_backward", VIEWS.format(name="cumsum", node="Cumsum", forward_end=20))
    assert view is not None
    assert other is not None
    assert "Take all parts at once" in view.advice
    assert "Look for an equivalent operator" in other.advice
    assert "if it took no time" in view.gain.words


@pytest.mark.parametrize(
    ("operator", "node"),
    [
        ("_Scan", "_ScanBackward"),  # a torch.autograd.Function
        ("lib::scan", "GeneratedBackwardFor_lib_scan_defaultBackward"),  # torch.library.custom_op
    ],
)
def test_a_backward_that_the_user_wrote_counts_from_four_times_its_forward(operator: str, node: str) -> None:
    """PyTorch's own from eight: nobody can change the gradient of a power."""

    def finding(times: int, operator: str = operator, node: str = node) -> Finding | None:
        text = VIEWS.replace("aten::{name}", operator).replace("{node}Backward0", node)
        if "::scan" in operator:
            text += "main | 20 25 | GeneratedBackwardFor_lib_scan_default | seq=1"  # its node links to this
        return found("forward_backward", text.format(forward_end=10 + 800 // times))

    assert finding(3) is None
    own = finding(5)
    assert own is not None
    assert f"Backward of {operator} takes 5 times its forward" in own.what
    assert "PyTorch did not write this backward" in own.advice
    assert finding(5, "aten::pow", "PowBackward0") is None
    assert finding(9, "aten::pow", "PowBackward0") is not None
    again = finding(5, "CheckpointFunction", "CheckpointFunctionBackward")  # forward once more, as asked for
    assert again is None


def test_a_gradient_that_calls_a_collective_is_communication() -> None:
    """As FSDP reduces gradients in the backward of a function that changes nothing in forward."""
    text = VIEWS.format(name="hook", node="Hook", forward_end=20)
    names = {"aten::hook": "HookFunction", "HookBackward0": "HookFunctionBackward"}
    for old, new in names.items():
        text = text.replace(old, new)
    assert found("forward_backward", text) is not None
    sends = f"{text}\nmain | 200 800 | c10d::_reduce_scatter_base_"
    assert found("forward_backward", sends) is None


def test_a_sparse_gradient_is_what_would_be_advised() -> None:
    text = VIEWS.format(name="embedding", node="Embedding", forward_end=20)
    finding = found("forward_backward", f"{text}\nmain | 200 800 | aten::embedding_dense_backward")
    assert finding is not None
    assert "sparse=True" in finding.advice
    assert found("forward_backward", f"{text}\nmain | 200 800 | aten::embedding_sparse_backward") is None


REORDERED = """
    main | 0 1000 | ProfilerStep#0
    main | 10 20 | aten::convolution | seq=1 Input_Dims=[[8,3,32,32],[16,3,3,3]]
    main | 900 910 | autograd::engine::evaluate_function: ConvolutionBackward0 | seq=1 fwd=1
"""


@pytest.mark.parametrize(("size", "told"), [([8, 3, 32, 32], True), ([8, 4, 24, 32], False)])
def test_only_copies_of_what_convolutions_take_change_a_layout(size: list[int], told: bool) -> None:
    """Attention copies tensors of four dimensions as well."""
    _, a, b, c = size
    strides = [[a * b * c, b * c, c, 1], [a * b * c, 1, a * c, a]]
    shapes = f"Input_Dims={[size, size]} Input_Strides={strides}".replace(", ", ",")
    copies = [f"main | {at} {at + 90} | aten::copy_ | {shapes}" for at in range(100, 500, 100)]
    finding = found("layout_conversions", "\n".join([REORDERED, *copies]))
    assert (finding is not None) is told


def test_a_recurrent_layer_is_what_a_network_computes() -> None:
    step = "main | 0 1000 | ProfilerStep#0\nmain | 10 900 | aten::{name}"
    assert found("hotspot", step.format(name="mkldnn_rnn_layer")) is None
    assert found("hotspot", step.format(name="sort")) is not None


def test_a_hotspot_is_where_it_takes_most() -> None:
    modules = [{"name": name, "class": "Layer"} for name in "ab"]
    model = {"name": "net", "class": "Net", "children": modules}
    finding = found(
        "hotspot",
        """
        main | 0 1000 | ProfilerStep#0
        main | 10 20 | stepscope.module: a
        main | 11 19 | aten::sort
        main | 30 900 | stepscope.module: b
        main | 31 899 | aten::sort
    """,
        model=model,
    )
    assert finding is not None
    assert finding.what.endswith("2 times per step. Most is in b.")


SMALL = """
    main | 0 1000 | ProfilerStep#0
    main | 10 {loaded} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 910 915 | aten::linear | Input_Dims=[[4,512],[512,512]] seq=1
    main | 950 955 | autograd::engine::evaluate_function: LinearBackward0 | seq=1 fwd=1
"""


def test_loading_a_batch_is_no_overhead_that_a_larger_one_would_share() -> None:
    assert found("small_batch", SMALL.format(loaded=900)) is None
    finding = found("small_batch", SMALL.format(loaded=20))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.99)


CONVOLVING = """
    main | 0 1000 | ProfilerStep#0
    main | 10 800 | aten::conv2d        | Input_Dims=[[4,3,64,64],[8,3,3,3]] seq=1
    main | 20 790 | aten::convolution   | Input_Dims=[[4,3,64,64],[8,3,3,3]] seq=1
    main | 25 30  | aten::empty
"""


def test_an_operator_that_makes_room_for_its_result_works_all_the_same() -> None:
    assert found("small_batch", CONVOLVING) is None


def test_a_small_batch_of_inference_has_no_learning_rate() -> None:
    finding = found("small_batch", "\n".join(SMALL.format(loaded=20).splitlines()[:-1]))
    assert finding is not None
    assert finding.advice == "Use larger batches, or pack several samples into one."


def logged(begin: float, write_ms: float) -> str:
    """A step of 10 ms that begins with Python, as of a log that is written behind each step."""
    end = begin + 10_000
    computing = calls("aten::mm", 20, begin + 1000 * write_ms, 100)
    computing = computing.replace("main |", "main  |")
    return f"""
        main | {begin} {end} | ProfilerStep#{begin // 10_000:.0f}
        {computing}
        main | {begin + 1000 * write_ms + 2000} {end - 200} | autograd::engine::evaluate_function
        main | {end - 190} {end - 5} | Optimizer.step#SGD.step
    """


def test_python_that_comes_back_in_each_step_is_told_with_its_place() -> None:
    finding = found("cpu_latency", logged(0, 4) + logged(10_000, 3), capture={"step_ends_after": "SGD.step"})
    assert finding is not None
    assert finding.what == (
        "The training loop runs only Python for 35% of the step. "
        "Longest: 4 ms without interruption between SGD.step and aten::mm."
    )
    assert "stepscope run --stack" in finding.advice
    assert finding.gain.ms == pytest.approx(3.5)


SAVED = """
    main | 0 10000 | ProfilerStep#0
    main | 10 6000 | stepscope.checkpointing: save (train.py:31)
    main | 20 30 | aten::detach
    main | 6000 9900 | aten::mm
"""


def test_python_that_saves_a_checkpoint_has_a_rule_of_its_own_that_names_the_line() -> None:
    assert found("cpu_latency", SAVED) is None
    finding = found("checkpoint_in_loop", SAVED)
    assert finding is not None
    (place,) = finding.evidence
    assert (place.file, place.line, place.function) == ("train.py", 31, "save")


@pytest.mark.parametrize(
    ("cpu_ms", "queued_ms", "says"),
    [
        (1, 0, "is blocked for about 90%"),
        (9, 0, "runs only Python"),
        (1, 8, "runs only Python"),
        (4, 0, "is blocked for about 60%"),
    ],
)
def test_a_loop_that_waits_for_other_processes_runs_no_python(
    cpu_ms: float, queued_ms: float, says: str
) -> None:
    """As for rollouts in a queue: what uses no core, and waits for none, is blocked."""
    text = "main | 0 10000 | ProfilerStep#0\nmain | 9000 10000 | aten::mm"
    times = {"median_ns": 10e6, "elapsed_ns": 10e6}
    times |= {"cpu_ns": 1e6 * cpu_ms, "queued_ns": 1e6 * queued_ms}
    finding = found("cpu_latency", text, capture={"recorded_steps": times})
    assert finding is not None
    assert says in finding.what
    assert ("another process" in finding.advice) == ("blocked" in says)


@pytest.mark.parametrize(
    ("process_ms", "others", "advice"),
    [
        (
            8,
            ["poll (/me/train.py:9)"],
            "Other threads of the process compute meanwhile in poll (/me/train.py:9):",
        ),
        (8, [], "Other threads of the process compute meanwhile: Python runs one at a time (GIL)."),
        (4, ["poll (/me/train.py:9)"], "Find what it waits for: another process"),  # 3 ms of the 9
    ],
)
def test_a_loop_that_waits_while_other_threads_compute_waits_for_the_gil(
    process_ms: float, others: list[str], advice: str
) -> None:
    text = "main | 0 10000 | ProfilerStep#0\nmain | 9000 10000 | aten::mm"
    times = {"median_ns": 10e6, "elapsed_ns": 10e6, "cpu_ns": 1e6, "queued_ns": 0}
    times["process_cpu_ns"] = 1e6 * process_ms
    finding = found("cpu_latency", text, capture={"recorded_steps": times, "others": others})
    assert finding is not None
    assert "is blocked for about 90%" in finding.what
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("process_ms", "others", "share"),
    [
        (13, ["fill (/me/train.py:9)"], 0.6),
        (13, [], 0.0),  # such as threads of an operator
        (5.9, ["fill (/me/train.py:9)"], 0.0),  # for 1.9 ms of the 10
    ],
)
def test_a_loop_that_waits_for_the_gil_within_its_calls_is_held_up(
    process_ms: float, others: list[str], share: float
) -> None:
    """As by a thread that fills a queue: no gap between operators is long, and calls take longer."""
    text = """
        main | 0 10000 | ProfilerStep#0
        main | 0 4700 | aten::mm
        main | 5000 9100 | aten::relu
        main | 9400 10000 | aten::sum
    """
    times = {"median_ns": 10e6, "elapsed_ns": 10e6, "queued_ns": 0}
    recorded = times | {"cpu_ns": 4e6, "process_cpu_ns": 1e6 * process_ms}
    later = times | {"cpu_ns": 2e6}
    capture = {"recorded_steps": recorded, "unrecorded_steps": later, "others": others}
    finding = found("cpu_latency", text, capture=capture)
    assert (finding is not None) == bool(share)
    if finding is not None:
        assert finding.what.startswith(f"The loop is blocked for about {share:.0%} of the step.")
        assert finding.advice.startswith("Other threads of the process compute meanwhile in fill")
        assert finding.gain.stated_ms == pytest.approx((0, 8))  # later it is blocked for 80 %


def test_a_loop_that_waits_for_other_ranks_is_not_held_up_by_threads_that_exchange() -> None:
    text = """
        main | 0 10000 | ProfilerStep#0
        main | 0 2500 | aten::mm
        main | 2800 3200 | aten::relu
        gloo | 3200 9400 | gloo:all_reduce | cat=communication
        main | 9400 10000 | aten::sum
    """
    times = {"median_ns": 10e6, "elapsed_ns": 10e6, "queued_ns": 0, "cpu_ns": 4e6, "process_cpu_ns": 13e6}
    capture = {"recorded_steps": times, "others": ["watch (/me/train.py:9)"]}
    assert found("cpu_latency", text, capture=capture) is None
    alone = text.replace("gloo | 3200", "gloo | 9300")
    assert found("cpu_latency", alone.replace("9400 10000", "3300 10000"), capture=capture) is not None


def freed(begin: float, class_name: str) -> str:
    """A step of 10 ms whose update frees memory for 4 ms between two operators."""
    return f"""
        main | {begin} {begin + 10_000} | ProfilerStep#{begin // 10_000:.0f}
        main | {begin} {begin + 3000} | aten::mm
        main | {begin + 3000} {begin + 4900} | autograd::engine::evaluate_function
        main | {begin + 4900} {begin + 9990} | Optimizer.step#{class_name}.step
        main | {begin + 4910} {begin + 5400} | aten::div
        main | {begin + 9400} {begin + 9980} | aten::add_
    """


def test_memory_that_an_optimizer_of_pytorch_frees_is_no_python_of_the_loop() -> None:
    assert found("cpu_latency", freed(0, "Adam") + freed(10_000, "Adam")) is None


def test_python_in_an_optimizer_of_the_user_is_named() -> None:
    finding = found("cpu_latency", freed(0, "Mine") + freed(10_000, "Mine"))
    assert finding is not None
    assert "for 40% of the step. Mostly in Mine.step" in finding.what


def test_python_in_the_closure_of_an_optimizer_is_of_the_loop() -> None:
    """Lightning runs the whole step in the range of the optimizer."""
    closure = "".join(
        f"""
        main | {begin} {begin + 10_000} | ProfilerStep#{number}
        main | {begin + 10} {begin + 9990} | Optimizer.step#Adam.step
        main | {begin + 20} {begin + 1000} | aten::mm
        main | {begin + 5000} {begin + 6000} | aten::sum
        main | {begin + 6000} {begin + 9000} | autograd::engine::evaluate_function: MmBackward0
        main | {begin + 9000} {begin + 9980} | aten::add_
        """
        for number, begin in enumerate((0, 10_000))
    )
    finding = found("cpu_latency", closure)
    assert finding is not None
    assert "4 ms without interruption between aten::mm and aten::sum" in finding.what


def test_the_function_is_named_where_frames_were_recorded() -> None:
    frame = "main | 10 3990 | train.py(7): write_log"
    finding = found("cpu_latency", logged(0, 4) + frame)
    assert finding is not None
    assert "Mostly in train.py:7 in write_log" in finding.what
    assert "--stack" not in finding.advice


def test_python_that_only_one_step_has_is_not_told() -> None:
    """A process that the machine lets wait looks the same, but not in each step."""
    assert found("cpu_latency", logged(0, 4) + logged(10_000, 0.5)) is None
    assert found("cpu_latency", logged(0, 0.9)) is None


def test_a_matrix_product_has_no_other_form_with_a_cheaper_gradient() -> None:
    """Its gradient are two more products: one that takes long had to wait for a core."""
    assert found("forward_backward", VIEWS.format(name="mm", node="Mm", forward_end=20)) is None


def test_python_all_over_is_told_with_the_longest_of_it_and_the_steps_as_one_place() -> None:
    finding = found("cpu_latency", logged(0, 7.4) + logged(10_000, 7.4))
    assert finding is not None
    assert "7.4 ms without interruption between the start of the step and aten::mm" in finding.what
    assert [place.count for place in finding.evidence if "ProfilerStep" in place.name] == [1]


def test_a_function_of_a_library_is_named_with_who_called_it() -> None:
    frames = "main | 10 3990 | train.py(7): write_log\nmain | 20 3980 | json/encoder.py(9): encode"
    finding = found("cpu_latency", logged(0, 4) + frames)
    assert finding is not None
    assert "in json/encoder.py(9): encode, called by train.py:7 in write_log. Longest: 4 ms" in finding.what


def test_python_is_not_blamed_where_the_trace_shows_nothing_of_the_cpu() -> None:
    """Kernels and marks of steps, as of a device that is recorded by itself."""
    kernels = "\n".join(
        f"main     | {begin} {begin + 20_000} | ProfilerStep#{step}\n"
        f"stream 7 | {begin} {begin + 8_000} | sgemm\n"
        f"stream 7 | {begin + 12_000} {begin + 20_000} | sgemm"
        for step, begin in enumerate(range(0, 80_000, 20_000))
    )
    assert found("python_stall", kernels) is None
    assert found("idle_device", kernels) is None
    launches = "\n".join(
        f"main | {begin} {begin + 5} | cudaLaunchKernel" for begin in range(0, 80_000, 20_000)
    )
    unnamed = found("python_stall", f"{kernels}\n{launches}")
    assert unnamed is not None
    assert "Python" not in unnamed.what + unnamed.advice
    assert unnamed.severity == "warning"


GAP = """
    main     |     0     10 | cudaLaunchKernel | corr=1
    main     |    20    420 | cudaDeviceSynchronize
    main     | {begin} {end} | cudaGetDeviceProperties_v2
    main     | 99900  99910 | cudaLaunchKernel | corr=2
    stream 7 |    10    400 | a                | corr=1
    stream 7 | 99910 100000 | b                | corr=2
"""


def test_a_call_is_blamed_for_a_gap_if_it_takes_half_of_it() -> None:
    short = found("idle_device", GAP.format(begin=50_000, end=50_050))
    assert short is not None
    assert "Properties" not in short.what
    assert "Nothing recorded explains it" in short.what
    calls = "".join(
        f"main | {at} {at + 900} | cudaEventCreate | cat=runtime\n" for at in range(1_000, 99_000, 1_000)
    )
    many = found("idle_device", f"{GAP.format(begin=500, end=510)}\n{calls}")
    assert many is not None
    assert "mostly in cudaEventCreate" in many.what


def test_a_gap_without_any_event_is_explained_by_nothing() -> None:
    lines = [line for line in GAP.splitlines() if "Properties" not in line]
    alone = found("idle_device", "\n".join(lines))
    assert alone is not None
    assert "Nothing recorded explains it" in alone.what


def test_a_device_that_awaits_its_batch_is_explained_by_that() -> None:
    """As a TPU in its infeed: no call of the CPU shows it."""
    lines = []
    for step in range(3):
        at = 1000 * step
        lines += [f"stream 9 | {at} {at + 1000} | step#step_num={step} | cat=annotation"]
        lines += [f"main | {20 * step} {20 * step + 5} | TpuExecutable | cat=runtime"]
        lines += [f"stream 1 | {at} {at + 400} | infeed | cat=sync"]
        lines += [f"stream 1 | {at + 400} {at + 1000} | fusion"]
    waits = found("idle_device", "\n".join(lines))
    assert waits is not None
    assert "while a batch loads" in waits.what
    assert "Nothing recorded" not in waits.what


def test_a_whole_graph_and_a_wait_are_no_hotspots() -> None:
    for name in ("CUDA graph", "wait: float(x)"):
        text = f"""
            main     | 0 100 | ProfilerStep#1
            main     | 0 1   | cudaGraphLaunch | corr=1
            stream 7 | 1 100 | {name}          | corr=1 cat=kernel
        """
        assert found("hotspot", text) is None


def test_a_step_that_the_user_marks_is_no_place_in_it() -> None:
    steps = "\n".join(
        f"main     | {begin} {begin + 20_000} | step {step} | cat=annotation\n"
        f"main     | {begin + 100} {begin + 6_000} | forward | cat=annotation\n"
        f"main     | {begin + 5_000} {begin + 5_005} | cudaLaunchKernel | corr={step}\n"
        f"stream 7 | {begin + 5_010} {begin + 12_000} | sgemm | corr={step}"
        for step, begin in enumerate(range(0, 80_000, 20_000))
    )
    finding = found("python_stall", steps)
    assert finding is not None
    assert "runs nothing that is recorded" in finding.what
    assert [place.name for place in finding.evidence] == ["forward"]


@pytest.mark.parametrize("call", ["cudaEventSynchronize", "cudaEventQuery"])
def test_python_stalls_the_loop_while_another_thread_watches_the_device(call: str) -> None:
    """What a thread of NCCL waits for is no work; one that asks whether it is done may do some."""
    steps = "\n".join(
        f"main     | {begin} {begin + 10_000} | ProfilerStep#{step}\n"
        f"main     | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={step}\n"
        f"stream 7 | {begin + 20} {begin + 6_000} | sgemm | corr={step}\n"
        f"main     | {begin + 30} {begin + 6_010} | cudaStreamSynchronize\n"
        f"main     | {begin + 6_020} {begin + 9_990} | /home/me/train.py(7): update_ema | cat=python\n"
        f"watch    | {begin + 10} {begin + 9_990} | {call}"
        for step, begin in enumerate(range(0, 40_000, 10_000))
    )
    name, other = ("python_stall", "idle_device")[:: 1 if "Sync" in call else -1]
    finding = found(name, steps)
    assert finding is not None
    assert found(other, steps) is None
    assert finding.what.endswith("me/train.py:7 in update_ema.")
    assert finding.what.count("update_ema") == 1


def test_what_only_one_step_waits_for_is_no_gain_of_waiting_less() -> None:
    """Images are saved for 40 ms in one of six steps: later steps could run ahead of that alone."""
    lines, begin = [], 0
    for step in range(6):
        end = begin + (44_000 if step == 3 else 4_000)
        lines += [
            f"main     | {begin} {end} | ProfilerStep#{step}",
            f"main     | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={step}",
            f"stream 7 | {begin + 20} {begin + 3_900} | sgemm | corr={step}",
            f"main     | {begin + 30} {begin + 3_920} | aten::item",
            f"main     | {begin + 40} {begin + 3_910} | cudaStreamSynchronize",
            f"main     | {begin + 3_930} {end - 10} | viz.py(7): save_images | cat=python",
        ]
        begin = end
    context = RuleContext(annotate(drawn_trace("\n".join(lines))))
    analysis = analysis_of(context, RULES)
    assert "host-bound" in context.measures.summary.verdict.sentence
    assert [finding.rule for finding in analysis.findings if finding.share > 0.03] == []
    assert analysis.heading.notes == ("step 3 alone takes 69% of the recorded time",)


def test_a_device_that_takes_turns_with_another_is_not_told_to_read_results_later() -> None:
    """A model in two parts on two devices, of which the second works on the results of the first."""
    trace = drawn_trace("""
        main     |     0 100000 | ProfilerStep#0
        main     |    10     20 | cudaLaunchKernel | corr=1
        main     |    30     40 | cudaLaunchKernel | corr=2
        main     |    50  99000 | cudaStreamSynchronize
        stream 7 |    20  50000 | a | corr=1
        stream 8 | 50000  98000 | b | corr=2
    """)
    tracks = trace["tracks"]
    second = tracks.text("name").mask("stream 8")
    trace = trace.with_table(tracks.with_columns(device=np.where(second, 1, tracks["device"])))
    (finding,) = (
        one for one in apply_rules(RuleContext(annotate(trace)), RULES) if one.rule == "idle_device"
    )
    assert finding.what.startswith("The device idles 49% of the step while another works.")
    assert "micro-batches" in finding.advice
