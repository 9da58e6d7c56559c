"""Which stage of the training loop each event belongs to."""

from __future__ import annotations

import pytest
from facts import of_events, us

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.range_names import stage_of_range
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def staged(text: str) -> Trace:
    return annotate(drawn_trace(text))


def test_names_tell_and_hand_down_their_stage() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main |  0  20 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main |  5  10 | aten::stack
        main | 20  30 | Optimizer.zero_grad#SGD.zero_grad
        main | 30  50 | ## forward ##
        main | 35  45 | aten::mm
        main | 50  70 | ## backward ##
        main | 55  65 | aten::t
        main | 70  90 | Optimizer.step#SGD.step
        main | 75  85 | aten::add_
    """)
    assert of_events(trace, "stage") == {
        "ProfilerStep#1": None,
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "data_loading",
        "aten::stack": "data_loading",
        "Optimizer.zero_grad#SGD.zero_grad": "zero_grad",
        "## forward ##": "forward",
        "aten::mm": "forward",
        "## backward ##": "backward",
        "aten::t": "backward",
        "Optimizer.step#SGD.step": "optimizer",
        "aten::add_": "optimizer",
    }


def test_a_thread_that_only_waits_is_not_that_of_the_loop() -> None:
    trace = staged("""
        loop    |  5 90 | nn.Module: Net_0
        loop    | 10 40 | aten::mm
        loop    | 40 80 | aten::relu
        waiting |  0 99 | threading.py(1032): _bootstrap
        waiting |  1 98 | threading.py(359): wait
    """)
    stages = trace["stages"]
    assert "forward" in stages.text("stage").values
    assert of_events(trace, "stage")["aten::mm"] == "forward"


def test_what_no_name_tells_is_told_by_its_place() -> None:
    """The loop of a trace of 2021: nothing but operators, and autograd on a thread of its own."""
    trace = staged("""
        main     |  0 100 | ProfilerStep#1
        main     |  1   2 | aten::empty
        main     |  2   9 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     | 10  14 | aten::to
        main     | 11  12 | cudaMemcpyAsync                | corr=1
        main     | 15  20 | aten::conv2d                   | seq=5
        main     | 16  18 | cudaLaunchKernel               | corr=2
        main     | 20  25 | aten::nll_loss                 | seq=6
        main     | 25  27 | Optimizer.zero_grad#SGD.zero_grad
        main     | 28  29 | aten::ones_like
        autograd | 30  35 | NllLossBackward                | seq=6 fwd=1
        autograd | 35  55 | MkldnnConvolutionBackward      | seq=5 fwd=1
        main     | 56  60 | aten::_foreach_norm
        main     | 60  80 | Optimizer.step#SGD.step
        main     | 85  90 | aten::item
        stream 7 | 12  14 | Memcpy HtoD (Pageable -> Device) | corr=1
        stream 7 | 20  40 | implicit_gemm                  | corr=2
    """)
    found = of_events(trace, "stage")
    assert found["aten::empty"] == "other"
    assert found["aten::to"] == found["cudaMemcpyAsync"] == "transfer"
    assert found["Memcpy HtoD (Pageable -> Device)"] == "transfer"
    assert found["aten::conv2d"] == found["implicit_gemm"] == "forward"
    assert found["aten::nll_loss"] == "loss"
    assert found["aten::ones_like"] == "backward"
    assert found["MkldnnConvolutionBackward"] == "backward"
    assert found["aten::_foreach_norm"] == "optimizer"
    assert found["aten::item"] == "other"


def test_after_the_model_comes_the_loss() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 10 40 | stepscope.module:
        main | 15 30 | aten::mm | seq=1
        main | 41 45 | aten::sub | seq=2
        main | 50 60 | autograd::engine::evaluate_function: SubBackward0 | seq=2 fwd=1
        main | 60 70 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    """)
    found = of_events(trace, "stage")
    assert (found["aten::mm"], found["aten::sub"]) == ("forward", "loss")


def test_a_range_between_model_and_backward_that_is_named_otherwise_is_no_loss() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 10 40 | ## forward ##
        main | 41 50 | ## sparse_data_dist ##
        main | 42 45 | aten::all_to_all_single
        main | 60 90 | ## backward ##
    """)
    found = of_events(trace, "stage")
    assert found["## sparse_data_dist ##"] == found["aten::all_to_all_single"] == "other"


@pytest.mark.parametrize("thread", ["main", "autograd"])
@pytest.mark.parametrize("around", ["training_step", "micro_batch 3", "sparse_data_dist"])
def test_a_range_around_both_passes_hides_neither(around: str, thread: str) -> None:
    """As `record_function` in a user's `training_step`: the time of backward is not that of forward."""
    trace = staged(f"""
        main     |   0 1000 | ProfilerStep#1
        main     |   5  800 | {around} | cat=annotation
        main     |  10  200 | aten::linear | seq=1
        main     | 210  300 | aten::mse_loss | seq=2
        {thread} | 310  500 | autograd::engine::evaluate_function: MseLossBackward0 | seq=2 fwd=1
        {thread} | 505  790 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
        main     | 810  900 | Optimizer.step#SGD.step
    """)
    spans = us(trace, "stages", "stage", "start_ns", "end_ns")
    spent = {stage: sum(end - start for name, start, end in spans if name == stage) for stage, _, _ in spans}
    assert spent["forward"] == pytest.approx(200, abs=10)
    assert spent["backward"] == pytest.approx(490, abs=20)


@pytest.mark.parametrize(
    "around", ["stepscope.lines: /me/train.py:9 | cat=cpu_op", "gradients | cat=annotation"]
)
def test_what_is_between_the_nodes_of_backward_is_backward_in_a_range_around_its_call(around: str) -> None:
    trace = staged(f"""
        main | 0 100 | ProfilerStep#1
        main | 10 40 | stepscope.module:
        main | 15 30 | aten::mm | seq=1
        main | 41 45 | aten::sub | seq=2
        main | 46 80 | {around}
        main | 47 49 | aten::ones_like
        main | 50 60 | autograd::engine::evaluate_function: SubBackward0 | seq=2 fwd=1
        main | 65 75 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 85 95 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert found["aten::sub"] == "loss"
    assert found[around.partition(" |")[0]] == found["aten::ones_like"] == "backward"
    spans = us(trace, "stages", "stage", "start_ns", "end_ns")
    # With the gap before it.
    assert [one[1:] for one in spans if one[0] == "backward"] == [(45, 80)]


@pytest.mark.parametrize(
    ("model", "loss", "layer"),
    [
        ("aten::relu", "loss", "forward"),  # the loss calls the model
        ("aten::linear", "loss", "loss"),  # another model, as for a perceptual loss
        ("stepscope.module:", "loss", "loss"),
        ("Torch-Compiled Region: 0/0 | cat=annotation", "loss", "loss"),
    ],
)
def test_a_range_named_a_loss_around_all_layers_calls_the_model(model: str, loss: str, layer: str) -> None:
    trace = staged(f"""
        main | 0 100 | ProfilerStep#1
        main | 2   8 | {model}
        main | 10 60 | compute_loss | cat=annotation
        main | 15 30 | aten::conv2d | seq=1
        main | 40 55 | aten::nll_loss | seq=2
        main | 60 65 | autograd::engine::evaluate_function: NllLossBackward0 | seq=2 fwd=1
        main | 65 80 | autograd::engine::evaluate_function: ConvolutionBackward0 | seq=1 fwd=1
        main | 85 95 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert (found["aten::nll_loss"], found["aten::conv2d"]) == (loss, layer)


@pytest.mark.parametrize(
    ("inside", "stage", "recompute"),
    [
        ("aten::conv2d", "forward", 0),  # the range is around a training step and its backward pass
        ("aten::mul", "backward", 1),  # of a GradScaler
    ],
)
def test_a_range_named_backward_around_layers_is_around_the_model(
    inside: str, stage: str, recompute: int
) -> None:
    """Lightning until 1.5 calls one `training_step_and_backward`."""
    trace = staged(f"""
        main | 0 100 | ProfilerStep#1
        main | 4  95 | Optimizer.step#SGD.step
        main | 5  80 | training_step_and_backward | cat=annotation
        main | 10 30 | {inside}                   | seq=1
        main | 40 55 | aten::nll_loss             | seq=2
        main | 58 80 | backward                   | cat=annotation
        main | 60 65 | autograd::engine::evaluate_function: NllLossBackward0 | seq=2 fwd=1
        main | 65 80 | autograd::engine::evaluate_function: OtherBackward0   | seq=1 fwd=1
        main | 85 90 | aten::add_
    """)
    found = of_events(trace, "stage", "recompute")
    assert found[inside] == (stage, recompute)
    assert found["autograd::engine::evaluate_function: OtherBackward0"][0] == "backward"


def test_autograds_thread_is_known_by_its_name() -> None:
    """As Kineto writes it, in a recording of the device alone."""
    trace = staged("""
        thread 7 (python3)       | 0 100 | ProfilerStep#1
        thread 7 (python3)       | 5  10 | cudaLaunchKernel | corr=1
        thread 9 (pt_autograd_0) | 50 60 | cudaLaunchKernel | corr=2
        stream 7                 | 12 40 | forward_gemm     | corr=1
        stream 7                 | 62 90 | other_gemm       | corr=2
    """)
    assert of_events(trace, "stage")["other_gemm"] == "backward"


def test_work_that_another_process_launches_is_of_the_operator_that_asked_for_it() -> None:
    """On Ascend CANN launches; an arrow of its own, and then one of PyTorch's, lead to the work."""
    trace = staged("""
        python   |  0 100 | ProfilerStep#1
        python   | 10  20 | aten::linear | seq=1
        python   | 40  60 | AddmmBackward0 | seq=1 fwd=1
        python   | 80  90 | Optimizer.step#SGD.step
        CANN     | 22  24 | Node@launch | cat=other
        CANN     | 62  64 | AscendCL@aclrtLaunch | cat=other
        stream 3 | 30  50 | MatMulV2
        stream 3 | 66  78 | MatMulV3
        HostToDevice | arrow | Node@launch > MatMulV2
        HostToDevice | arrow | AscendCL@aclrtLaunch > MatMulV3
        async_npu    | arrow | aten::linear > MatMulV2
        async_npu    | arrow | AddmmBackward0 > MatMulV3
    """)
    found = of_events(trace, "stage")
    assert (found["MatMulV2"], found["MatMulV3"]) == ("forward", "backward")


def test_layers_that_marks_of_parts_of_the_model_leave_out_are_forward() -> None:
    """FSDP marks the blocks that it shards, but not the model, which has an embedding and a head."""
    trace = staged("""
        main |   0 200 | ProfilerStep#1
        main |   2   6 | aten::embedding | seq=1
        main |  10  12 | FSDP::pre_forward (layers.0) | cat=annotation
        main |  14  28 | aten::layer_norm | seq=2
        main |  30  32 | FSDP::post_forward (layers.0) | cat=annotation
        main |  40  42 | FSDP::pre_forward (layers.1) | cat=annotation
        main |  44  58 | aten::addmm | seq=3
        main |  60  62 | FSDP::post_forward (layers.1) | cat=annotation
        main |  70  90 | aten::linear | seq=4
        main |  72  88 | aten::mm | seq=4
        main |  92  94 | aten::matmul | seq=5
        main |  95  99 | aten::mean | seq=6
        main | 100 120 | MeanBackward0 | seq=6 fwd=1
        main | 120 140 | MmBackward0 | seq=4 fwd=1
        main | 150 170 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    model = ("aten::embedding", "aten::layer_norm", "aten::addmm", "aten::linear", "aten::mm")
    assert {name: found[name] for name in model} == dict.fromkeys(model, "forward")
    assert (found["aten::matmul"], found["aten::mean"]) == ("loss", "loss")


def test_threads_that_backward_returns_to_run_forward() -> None:
    """The replicas of DataParallel, which equal each other."""
    trace = staged("""
        main      |   0 400 | ProfilerStep#1
        main      |  10  30 | Broadcast           | seq=1
        replica 0 |  40  80 | aten::conv2d        | seq=0
        replica 0 |  50  60 | cudaLaunchKernel    | corr=1
        replica 1 |  40  80 | aten::linear        | seq=0
        replica 1 |  50  60 | cudaLaunchKernel    | corr=2
        loader    |  40  80 | aten::stack
        main      |  90 100 | Gather              | seq=2
        autograd  | 110 120 | autograd::engine::evaluate_function: GatherBackward       | seq=2 fwd=1
        autograd  | 120 140 | autograd::engine::evaluate_function: ConvolutionBackward0 | seq=0 fwd=2
        autograd  | 140 160 | autograd::engine::evaluate_function: AddmmBackward0       | seq=0 fwd=3
        autograd  | 160 180 | autograd::engine::evaluate_function: BroadcastBackward    | seq=1 fwd=1
        main      | 200 300 | Optimizer.step#SGD.step
        stream 7  |  60 100 | fprop               | corr=1
        stream 8  |  60 100 | gemm                | corr=2
    """)
    found = of_events(trace, "stage")
    names = ("aten::conv2d", "aten::linear", "fprop", "gemm", "Gather", "aten::stack")
    assert [found[name] for name in names] == [*["forward"] * 5, "other"]


def test_a_range_around_loss_and_backward_is_neither() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 10 40 | stepscope.module:
        main | 15 30 | aten::mm | seq=1
        main | 41 80 | both | cat=annotation
        main | 42 45 | aten::sub | seq=2
        main | 50 60 | autograd::engine::evaluate_function: SubBackward0 | seq=2 fwd=1
        main | 65 75 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 85 95 | Optimizer.step#SGD.step
    """)
    assert of_events(trace, "stage")["both"] == "other"


LINES = "stepscope.lines: /me/x.py:9 | cat=cpu_op"  # the line of the user's that calls an operator


@pytest.mark.parametrize("around", ["", f"autograd | 33 44 | {LINES}"])
def test_gradients_that_autograd_records_are_no_recomputation(around: str) -> None:
    """A gradient penalty takes gradients with `create_graph=True`, for a backward pass of them."""
    trace = staged(f"""
        main     |  0 100 | ProfilerStep#1
        main     | 12  18 | aten::addmm                                       | seq=1
        autograd | 30  45 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
        autograd | 32  44 | AddmmBackward0                                    | seq=1 fwd=1
        {around}
        autograd | 33  43 | aten::mm                                          | seq=2
        autograd | 50  70 | autograd::engine::evaluate_function: MmBackward0  | seq=2 fwd=1
        autograd | 52  60 | aten::mul
    """)
    stage, recompute = of_events(trace, "stage", "recompute")["aten::mm"]
    assert (stage, recompute) == ("backward", 0)


def test_forward_work_in_backward_is_recomputation_and_not_forward() -> None:
    trace = staged("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | nn.Module: Linear_0
        main     | 12  18 | aten::linear                                     | seq=1
        autograd | 30  70 | autograd::engine::evaluate_function: Checkpoint  | seq=1 fwd=1
        autograd | 35  50 | nn.Module: Linear_0
        autograd | 38  45 | aten::addmm                                      | seq=2
        autograd | 39  41 | cudaLaunchKernel                                 | corr=1
        autograd | 55  65 | aten::mm
        stream 7 | 50  60 | sgemm                                            | corr=1
    """)
    assert of_events(trace, "stage", "recompute") == {
        "ProfilerStep#1": (None, 0),
        "nn.Module: Linear_0": [("forward", 0), ("backward", 1)],
        "aten::linear": ("forward", 0),
        "autograd::engine::evaluate_function: Checkpoint": ("backward", 0),
        "aten::addmm": ("backward", 1),
        "cudaLaunchKernel": ("backward", 1),
        "aten::mm": ("backward", 0),
        "sgemm": ("backward", 1),
    }


def test_an_optimizers_closure_is_forward_and_backward() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 10 90 | Optimizer.step#LBFGS.step
        main | 20 30 | stepscope.module:
        main | 22 28 | aten::mm | seq=1
        main | 40 60 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 70 80 | aten::add_
    """)
    found = of_events(trace, "stage")
    assert found["aten::mm"] == "forward"
    assert found["autograd::engine::evaluate_function: MmBackward0"] == "backward"
    assert found["aten::add_"] == "optimizer"


@pytest.mark.parametrize(
    ("name", "options", "stage"),
    [("aten::stack", "", "other"), ("aten::addmm", "", "forward"), ("aten::stack", "| seq=1", "forward")],
)
def test_what_precedes_an_update_is_forward_if_a_model_runs_or_gradients_are_computed(
    name: str, options: str, stage: str
) -> None:
    """A parameter server receives gradients and computes none."""
    backward = "main | 30 40 | autograd::engine::evaluate_function: StackBackward0 | seq=1 fwd=1"
    trace = staged(f"""
        main | 0 100 | ProfilerStep#1
        main | 10 20 | {name} {options}
        {backward if options else ""}
        main | 60 90 | Optimizer.step#Adam.step
    """)
    assert of_events(trace, "stage")[name] == stage


def times(trace: Trace) -> dict[str, int]:
    """The time of each stage on the thread of the loop, in microseconds."""
    total: dict[str, int] = {}
    for stage, start, end in us(trace, "stages", "stage", "start_ns", "end_ns"):
        total[stage] = total.get(stage, 0) + end - start
    return total


ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@pytest.mark.parametrize(
    ("optimizer", "gradients", "stage"), [(True, 0, "other"), (False, 0, "optimizer"), (False, 2, "other")]
)
def test_a_step_that_accumulates_gradients_updates_nothing(
    optimizer: bool, gradients: int, stage: str
) -> None:
    """What follows backward is an update by hand only where no step has an optimizer, and it has as
    many operators as there are gradients."""
    accumulated = [
        f"main | {at + each} {at + each + 1} | {ACCUMULATES}" for at in (40, 140) for each in range(gradients)
    ]
    trace = staged(f"""
        {chr(10).join(accumulated)}
        main | 0   100 | ProfilerStep#1
        main | 5    10 | aten::mm    | seq=1
        main | 20   40 | MmBackward0 | seq=1 fwd=1
        main | 50   90 | aten::item
        main | 100 200 | ProfilerStep#2
        main | 105 110 | aten::mm    | seq=2
        main | 120 140 | MmBackward0 | seq=2 fwd=1
        {"main | 150 160 | Optimizer.step#Adam.step" if optimizer else ""}
    """)
    assert of_events(trace, "stage")["aten::item"] == stage


CLOSURE = """
    main     |  0 200 | ProfilerStep#1
    main     | 10 190 | Optimizer.step#Adam.step
    main     | 11 160 | [pl][profile]run_training_step
    main     | 12  20 | Optimizer.zero_grad#Adam.zero_grad
    main     | 20  60 | aten::linear | seq=1
    main     | 60  78 | aten::_log_softmax | seq=2
    main     | 78  80 | aten::ones_like
    {thread} | 80 110 | autograd::engine::evaluate_function: LogSoftmaxBackward0 | seq=2 fwd=1
    {thread} | 110 150 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
    main     | 160 190 | aten::_foreach_add_
"""


@pytest.mark.parametrize("thread", ["main", "autograd"])
def test_a_closure_without_marks_is_told_by_its_place(thread: str) -> None:
    trace = staged(CLOSURE.format(thread=thread))
    found = of_events(trace, "stage")
    assert found["aten::linear"] == "forward"
    assert found["aten::_log_softmax"] == "loss"
    assert found["aten::ones_like"] == "backward"
    assert found["aten::_foreach_add_"] == "optimizer"
    stages = times(trace)
    assert stages["forward"] == 40
    assert stages["loss"] == 18
    assert 70 <= stages["backward"] <= 72
    assert 30 <= stages["optimizer"] <= 40


def test_an_optimizer_that_calls_its_closure_again_and_again() -> None:
    """LBFGS: what it computes between two calls is optimizer."""
    calls = "".join(
        f"""
        main | {at + 2} {at + 10} | aten::mm | seq={at + 1}
        main | {at + 10} {at + 24} | MmBackward0 | seq={at + 1} fwd=1
        main | {at + 24} {at + 40} | aten::dot"""
        for at in (10, 50, 90)
    )
    trace = staged(
        f"""
        main | 0 140 | ProfilerStep#1
        main | 10 135 | Optimizer.step#LBFGS.step{calls}"""
    )
    stages = times(trace)
    assert 24 <= stages["forward"] <= 32
    assert stages["backward"] == 42
    assert stages["optimizer"] >= 48


READS = """
    main     | {0} {1} | aten::{2}
    main     | {0} {1} | cudaMemcpyAsync | corr=7
    main     | {0} {1} | cudaStreamSynchronize
    stream 7 | {0} {1} | Memcpy DtoH     | corr=7
"""


@pytest.mark.parametrize(
    ("wait", "stage"),
    [
        (READS.format(30, 40, "item"), "other"),
        (READS.format(30, 40, "to"), "other"),
        ("main | 30 40 | hipMemcpyWithStream", "other"),
        ("main | 30 40 | cudaDeviceSynchronize", "other"),
        ("main | 30 40 | c10d::allreduce_\nmain | 32 33 | cudaStreamWaitEvent", "other"),
        (f"main | 30 40 | {LINES}\nmain | 30 40 | cudaEventSynchronize", "other"),
        (READS.format(30, 40, "is_nonzero"), "optimizer"),  # a branch: whether to clip
        (READS.format(46, 50, "item"), "optimizer"),  # whether unscaled gradients are finite
    ],
)
def test_waits_between_backward_and_the_update_are_other(wait: str, stage: str) -> None:
    trace = staged(f"""
        main     |  0 100 | ProfilerStep#1
        main     |  2  10 | aten::linear       | seq=1
        autograd | 10  30 | AddmmBackward0     | seq=1 fwd=1
        autograd | 11  12 | cudaLaunchKernel   | corr=1
        {wait}
        main     | 40  42 | aten::_foreach_norm
        main     | 42  46 | aten::_amp_foreach_non_finite_check_and_unscale_
        main     | 44  45 | cudaLaunchKernel   | corr=2
        main     | 55  60 | Optimizer.step#SGD.step
        stream 7 | 12  28 | gemm               | corr=1
        stream 7 | 45  46 | unscale            | corr=2
    """)
    found = of_events(trace, "stage")
    called = [name for name in found if name.startswith(("cudaStream", "cudaDevice", "cudaEvent", "hip"))]
    assert [found[name] for name in called] == [stage]
    assert found["aten::_foreach_norm"] == "optimizer"


@pytest.mark.parametrize("around", ["", "main | 70 90 | preload | cat=annotation"])
@pytest.mark.parametrize("copy", ["Memcpy HtoD (Pinned -> Device)", "zeCommandListAppendMemoryCopy(M2D)"])
def test_copies_of_the_next_batch_are_transfers(around: str, copy: str) -> None:
    trace = staged(f"""
        main     |  0 100 | ProfilerStep#1
        main     |  2  10 | aten::linear       | seq=1
        autograd | 10  30 | AddmmBackward0     | seq=1 fwd=1
        main     | 40  60 | Optimizer.step#SGD.step
        {around}
        main     | 71  80 | aten::to
        main     | 72  79 | aten::copy_
        main     | 73  75 | cudaMemcpyAsync    | corr=1
        main     | 81  85 | aten::div_
        main     | 82  83 | cudaLaunchKernel   | corr=2
        stream 8 | 76  90 | {copy}             | corr=1 cat=memcpy
        stream 8 | 90  95 | div                | corr=2
    """)
    found = of_events(trace, "stage")
    copies = ("aten::to", "aten::copy_", "cudaMemcpyAsync", copy)
    assert [found[name] for name in copies] == ["transfer"] * 4
    assert found["aten::div_"] == found["div"] == found.get("preload", "other") == "other"


def test_a_thread_that_runs_autograd_is_all_backward() -> None:
    trace = staged("""
        main     | 0 100 | ProfilerStep#1
        main     | 5  10 | aten::mm          | seq=1
        autograd | 20 60 | MmBackward0       | seq=1 fwd=1
        autograd | 60 70 | c10d::allreduce_
        loader   | 20 90 | aten::stack
    """)
    found = of_events(trace, "stage")
    assert found["c10d::allreduce_"] == "backward"
    assert found["aten::stack"] == "other"


def test_a_step_that_does_not_train_is_forward_between_its_kernels() -> None:
    trace = staged("""
        main     |  0 100 | ProfilerStep#1
        main     |  1   5 | aten::empty
        main     | 10  20 | aten::mm
        main     | 11  12 | cudaLaunchKernel      | corr=1
        main     | 20  21 | aten::view
        main     | 30  35 | aten::softmax
        main     | 31  32 | cudaLaunchKernel      | corr=2
        main     | 40  90 | aten::item
        main     | 41  89 | cudaMemcpyAsync       | corr=3
        stream 7 | 20  40 | sgemm                 | corr=1
        stream 7 | 40  50 | softmax_kernel        | corr=2
        stream 7 | 50  51 | Memcpy DtoH           | corr=3
    """)
    found = of_events(trace, "stage")
    assert [found[name] for name in ("aten::mm", "aten::view", "aten::softmax")] == ["forward"] * 3
    assert (found["aten::empty"], found["aten::item"]) == ("other", "other")


def test_launches_alone_tell_no_stage() -> None:
    trace = staged(
        """
        main     |  0 5 | cudaLaunchKernel | corr=1
        stream 7 | 10 9 | nothing
        stream 7 | 10 20 | sgemm           | corr=1
    """.replace("stream 7 | 10 9 | nothing", "")
    )
    assert of_events(trace, "stage")["sgemm"] == "other"


# -- the unbroken runs of a stage


def runs(trace: Trace) -> list[tuple[object, ...]]:
    return us(trace, "stages", "stage", "start_ns", "end_ns", "device_ns", "bound_by")


def test_runs_tile_the_step_and_gaps_belong_to_a_neighbor_or_to_other() -> None:
    trace = staged("""
        main     |    0 1000 | ProfilerStep#1
        main     |    5  300 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
        main     |  305  500 | ## forward ##
        main     |  310  320 | cudaLaunchKernel | corr=1
        main     |  700  900 | ## backward ##
        main     |  710  720 | cudaLaunchKernel | corr=2
        stream 7 |  400  500 | sgemm            | corr=1
        stream 7 |  800 1100 | sgemm_nt         | corr=2
    """)
    assert runs(trace) == [
        ("data_loading", 0, 300, 0, "data"),
        ("forward", 300, 500, 100, "cpu"),
        ("other", 500, 700, 0, "cpu"),
        ("backward", 700, 900, 300, "device"),
        ("other", 900, 1000, 0, "cpu"),
    ]


def test_a_stage_inside_another_breaks_it_in_two() -> None:
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 0  90 | ## forward ##
        main | 40 50 | my_loss | cat=annotation
        main | 90 100 | ## backward ##
    """)
    assert [(stage, start, end) for stage, start, end, _, _ in runs(trace)] == [
        ("forward", 0, 40),
        ("loss", 40, 50),
        ("forward", 50, 90),
        ("backward", 90, 100),
    ]


def test_while_the_loops_thread_waits_autograds_thread_tells() -> None:
    trace = staged("""
        main     |  0 100 | ProfilerStep#1
        main     |  0  20 | aten::mm     | seq=1
        autograd | 20  90 | MmBackward0  | seq=1 fwd=1
        main     | 90 100 | Optimizer.step#SGD.step
    """)
    assert [(stage, start, end) for stage, start, end, _, _ in runs(trace)] == [
        ("forward", 0, 20),
        ("backward", 20, 90),
        ("optimizer", 90, 100),
    ]


def test_a_stage_whose_device_mostly_communicates_is_bound_by_that() -> None:
    trace = staged("""
        main     |  0 100 | ProfilerStep#1
        main     |  0  50 | ## forward ##
        main     | 50 100 | ## backward ##
        main     | 60  61 | cudaLaunchKernel        | corr=1
        main     | 62  63 | cudaLaunchKernel        | corr=2
        stream 7 | 70  90 | sgemm                   | corr=1
        stream 9 | 80 180 | ncclDevKernel_AllReduce | corr=2
    """)
    assert runs(trace)[1] == ("backward", 50, 100, 110, "communication")


# -- several times forward and backward before the step ends

TWICE = """
    main | 0 200 | ProfilerStep#1
    main |   1   5 | aten::randn
    main |   5  15 | {model}
    main |   6  12 | aten::mm                | seq=1
    main |  20  25 | aten::nll_loss_nd       | seq=2
    main |  30  35 | autograd::engine::evaluate_function: NllLossBackward0 | seq=2 fwd=1
    main |  35  40 | autograd::engine::evaluate_function: MmBackward0      | seq=1 fwd=1
    main |  50  55 | aten::randperm
    main |  60  70 | {model}
    main |  61  65 | aten::addmm             | seq=3
    main |  70  72 | aten::sub               | seq=4
    main |  80  85 | autograd::engine::evaluate_function: SubBackward0     | seq=4 fwd=1
    main |  86  87 | aten::clone
    main |  90  95 | autograd::engine::evaluate_function: AddmmBackward0   | seq=3 fwd=1
    main | 100 105 | aten::_foreach_norm
    main | 110 150 | Optimizer.step#SGD.step
    main | 160 165 | aten::item
"""


def test_before_each_backward_there_is_a_forward_and_a_loss() -> None:
    found = of_events(staged(TWICE.format(model="stepscope.module:")), "stage")
    assert (found["aten::randn"], found["aten::randperm"]) == ("other", "other")
    assert (found["aten::mm"], found["aten::addmm"]) == ("forward", "forward")
    assert (found["aten::nll_loss_nd"], found["aten::sub"]) == ("loss", "loss")
    assert found["aten::clone"] == "backward"
    assert (found["aten::_foreach_norm"], found["aten::item"]) == ("optimizer", "other")


def test_without_marks_the_operators_that_backward_returns_to_are_forward() -> None:
    lines = [line for line in TWICE.splitlines() if "{model}" not in line]
    found = of_events(staged("\n".join(lines)), "stage")
    assert (found["aten::randn"], found["aten::randperm"]) == ("other", "other")
    assert [found[name] for name in ("aten::mm", "aten::addmm", "aten::sub")] == ["forward"] * 3
    assert (found["aten::nll_loss_nd"], found["aten::clone"]) == ("loss", "backward")


def test_a_penalty_on_gradients_is_loss() -> None:
    """Backward that is itself differentiated (a gradient penalty), then the rest of the loss."""
    trace = staged("""
        main | 0 100 | ProfilerStep#1
        main | 10 20 | stepscope.module:
        main | 12 18 | aten::mm | seq=1
        main | 30 40 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 32 38 | aten::t | seq=2
        main | 45 50 | aten::linalg_vector_norm | seq=3
        main | 60 65 | autograd::engine::evaluate_function: NormBackward0 | seq=3 fwd=1
        main | 65 70 | autograd::engine::evaluate_function: TBackward0 | seq=2 fwd=1
        main | 80 90 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert (found["aten::t"], found["aten::linalg_vector_norm"]) == ("backward", "loss")


def test_the_rest_of_a_penalty_is_loss_where_another_model_call_follows() -> None:
    """A physics-informed network: derivatives by its inputs, then the boundary."""
    trace = staged("""
        main |   0 200 | ProfilerStep#1
        main |   5   8 | aten::rand
        main |  10  20 | stepscope.module: | id=1
        main |  12  18 | aten::mm | seq=1
        main |  30  40 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main |  32  38 | aten::t | seq=2
        main |  45  50 | aten::square | seq=3
        main |  52  55 | aten::randn
        main |  60  70 | stepscope.module: | id=2
        main |  62  68 | aten::addmm | seq=4
        main |  70  75 | aten::sin | seq=5
        main |  80  85 | autograd::engine::evaluate_function: SinBackward0 | seq=5 fwd=1
        main |  85  90 | autograd::engine::evaluate_function: AddmmBackward0 | seq=4 fwd=1
        main |  90  95 | autograd::engine::evaluate_function: SquareBackward0 | seq=3 fwd=1
        main |  95  99 | autograd::engine::evaluate_function: TBackward0 | seq=2 fwd=1
        main | 100 120 | Optimizer.step#Adam.step
    """)
    found = of_events(trace, "stage")
    assert (found["aten::rand"], found["aten::randn"]) == ("other", "other")
    assert (found["aten::square"], found["aten::sin"]) == ("loss", "loss")
    assert (found["aten::mm"], found["aten::addmm"]) == ("forward", "forward")


def test_what_the_inputs_need_gradients_for_is_forward_before_the_first_model_call() -> None:
    trace = staged("""
        main |  0 100 | ProfilerStep#1
        main |  2   5 | aten::rand
        main |  5  10 | aten::cos | seq=1
        main | 10  40 | stepscope.module:
        main | 15  30 | aten::mm | seq=2
        main | 50  60 | autograd::engine::evaluate_function: MmBackward0 | seq=2 fwd=1
        main | 60  70 | autograd::engine::evaluate_function: CosBackward0 | seq=1 fwd=1
    """)
    found = of_events(trace, "stage")
    assert (found["aten::rand"], found["aten::cos"]) == ("other", "forward")


BLOCK = """
    main |   0 200 | ProfilerStep#1
    main |  10  30 | stepscope.module:
    main |  12  18 | aten::mm | seq=1
    main |  40  60 | stepscope.block: main (train.py:9)
    main |  42  58 | {inside}
    main |  44  46 | aten::lerp_
    main |  62  64 | aten::clamp
    main |  70  90 | stepscope.module: {second}
    main |  72  75 | aten::addmm | seq=2
    main |  92  95 | aten::sub | seq=3
    main | 100 105 | autograd::engine::evaluate_function: SubBackward0 | seq=3 fwd=1
    main | 105 110 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 120 140 | Optimizer.step#SGD.step
"""


@pytest.mark.parametrize(
    ("inside", "stage"), [("aten::mul_", "other"), ("stepscope.module: teacher", "forward")]
)
def test_a_block_without_gradients_between_model_calls(inside: str, stage: str) -> None:
    """MoCo updates its second encoder there; a teacher's pass belongs to forward."""
    found = of_events(staged(BLOCK.format(inside=inside, second="")), "stage")
    assert found[inside] == found["aten::lerp_"] == stage
    assert (found["aten::clamp"], found["aten::sub"]) == ("forward", "loss")


def test_targets_after_the_last_model_call_are_loss() -> None:
    trace = staged("""
        main |   0 200 | ProfilerStep#1
        main |  10  30 | stepscope.module: online
        main |  12  18 | aten::mm | seq=1
        main |  40  60 | stepscope.block: main (train.py:9)
        main |  42  50 | stepscope.module: target
        main |  50  58 | aten::max
        main |  60  65 | aten::sub | seq=2
        main | 100 105 | autograd::engine::evaluate_function: SubBackward0 | seq=2 fwd=1
        main | 105 110 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 120 140 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert (found["aten::max"], found["aten::sub"]) == ("loss", "loss")


@pytest.mark.parametrize(
    ("inside", "after", "stage"),
    [
        ("aten::cdist", "aten::sub | seq=2", "loss"),
        ("aten::_to_copy", "aten::sub | seq=2", "loss"),
        ("aten::lerp_", "aten::sub | seq=2", "other"),  # updates an average of the weights
        ("aten::copy_", "aten::sub | seq=2", "other"),  # copies them
        (f"{LINES}\nmain | 43 49 | aten::copy_", "aten::sub | seq=2", "other"),
        ("aten::argmax", "aten::relu", "other"),  # a metric: no loss comes after it
    ],
)
def test_a_block_without_gradients_that_the_loss_goes_on_from(inside: str, after: str, stage: str) -> None:
    """Detection matches predictions with targets there."""
    trace = staged(f"""
        main |   0 200 | ProfilerStep#1
        main |  10  30 | stepscope.module:
        main |  12  18 | aten::mm | seq=1
        main |  32  38 | aten::log | seq=4
        main |  40  60 | stepscope.block: match (train.py:9)
        main |  42  50 | {inside}
        main |  70  75 | {after}
        main | 105 110 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 120 140 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert (found["aten::log"], found[inside.partition(" |")[0]]) == ("loss", stage)
    assert found["stepscope.block: match (train.py:9)"] == stage


def test_a_block_around_the_first_model_call_is_forward() -> None:
    """A critic's step: the generator runs without gradients."""
    trace = staged("""
        main |   0 200 | ProfilerStep#1
        main |   5  30 | stepscope.block: main (train.py:9)
        main |   6   8 | aten::randn
        main |  10  25 | stepscope.module: generator
        main |  40  60 | stepscope.module: critic
        main |  42  58 | aten::mm | seq=1
        main | 100 110 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 120 140 | Optimizer.step#SGD.step
    """)
    found = of_events(trace, "stage")
    assert found["stepscope.block: main (train.py:9)"] == "forward"
    assert found["aten::randn"] == "other"


def test_products_of_gradients_before_the_optimizer_are_no_forward() -> None:
    """Gradients of each sample, clipped and summed: operators of layers in grad mode."""
    trace = staged("""
        main |   0 200 | ProfilerStep#1
        main |  10  40 | stepscope.module:
        main |  15  30 | aten::mm | seq=1
        main |  50  60 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main |  70  75 | aten::linalg_vector_norm | seq=2
        main |  80  90 | aten::bmm | seq=3
        main |  90  95 | aten::randn_like | seq=4
        main |  95  99 | aten::baddbmm | seq=5
        main | 120 140 | Optimizer.step#SGD.step
        main | 150 160 | aten::addmm | seq=6
    """)
    found = of_events(trace, "stage")
    names = ("aten::linalg_vector_norm", "aten::bmm", "aten::randn_like", "aten::baddbmm")
    assert [found[name] for name in names] == ["optimizer"] * 4


@pytest.mark.parametrize(("busy", "bound_by"), [(99, "device"), (91, "device"), (88, "cpu")])
def test_a_stage_is_bound_by_a_device_that_hardly_idles_as_the_step_is(busy: int, bound_by: str) -> None:
    """A file with launches and kernels alone, whose CPU seems to work all the time."""
    lines = [
        line.format(at := 100 * number, at + 1, at + busy)
        for number in range(9)
        for line in (
            "main | {0} {1} | cudaLaunchKernel | corr=" + str(number),
            "stream 7 | {1} {2}.9 | gemm | corr=" + str(number),
        )
    ]
    trace = annotate(drawn_trace("\n".join([*lines, "main | 899 900 | cudaEventRecord"])))
    assert set(trace["stages"].text("bound_by")) == {bound_by}
    assert (summarize(trace).verdict.bound_by == "device") == (bound_by == "device")


def test_a_stage_whose_cpu_waits_for_the_device_is_bound_by_the_device() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     |  0  90 | nn.Module: Net_0
        main     |  1   2 | cudaLaunchKernel | corr=1
        main     | 10  85 | cudaStreamSynchronize
        stream 7 |  5  84 | a | corr=1
    """)
    )
    runs = trace["stages"]
    found = dict(zip(runs.text("stage"), runs.text("bound_by"), strict=True))
    assert found["forward"] == "device"


@pytest.mark.parametrize(
    ("computes", "sums", "bound_by"), [(60, 20, "device"), (20, 60, "communication"), (20, 10, None)]
)
def test_a_stage_that_waits_for_work_of_others_is_bound_by_what_the_device_does_then(
    computes: int, sums: int, bound_by: str | None
) -> None:
    """It launches the shortest work itself, which communicates, and is blocked from 12 to 97."""
    between = 15 + computes
    text = f"""
        main     |   0 100 | ProfilerStep#1
        main     |   0  10 | ## forward ##
        main     |   1   2 | cudaLaunchKernel | corr=1
        main     |   3   4 | cudaLaunchKernel | corr=2
        main     |  10 100 | ## backward ##
        main     |  11  12 | cudaLaunchKernel | corr=3
        main     |  12  97 | cudaStreamSynchronize
        stream 7 |  15 {between} | sgemm | corr=1
        stream 8 |  {between} {between + sums} | ncclDevKernel_AllReduce | corr=2
        stream 8 |  {between + sums} {between + sums + 2} | ncclDevKernel_AllReduce | corr=3
    """
    runs = annotate(drawn_trace(text))["stages"]
    assert dict(zip(runs.text("stage"), runs.text("bound_by"), strict=True))["backward"] == bound_by


def test_nothing_is_said_to_bound_a_stage_where_work_is_missing() -> None:
    """Half of the launches lack their work."""
    lines = ["main | 0 1000 | ProfilerStep#1", "main | 0 900 | nn.Module: Net_0"]
    for number in range(20):
        at = 10 + 40 * number
        lines.append(f"main | {at} {at + 4} | cudaLaunchKernel | corr={number + 1}")
        if number % 2:
            lines.append(f"stream 7 | {at + 6} {at + 30} | sgemm | corr={number + 1}")
    trace = annotate(drawn_trace("\n".join(lines)))
    assert summarize(trace).verdict.bound_by == "unknown"
    assert set(trace["stages"].text("bound_by")) == {None}


def test_a_call_that_runs_what_all_passes_asked_for_is_in_none_of_them() -> None:
    """Lazy devices (Gaudi, torch_xla): operators only note their work; a mark of the step runs it."""
    loop = """
        main     |   0 400 | ProfilerStep#0
        main     |  10  20 | aten::linear       | seq=1
        autograd |  30  40 | AddmmBackward0     | seq=1 fwd=1
        {noted}
        main     |  60  80 | hpu_lazy::mark_step
        main     |  62  64 | synLaunch          | corr=2 cat=runtime
        main     |  80 390 | synStreamSynchronize | cat=runtime
        stream 7 |  70 380 | fused_kernel_0_1   | corr=2
    """
    lazy = of_events(staged(loop.format(noted="")), "stage", "kind")
    assert lazy["hpu_lazy::mark_step"][0] == lazy["fused_kernel_0_1"][0] == "other"
    assert lazy["fused_kernel_0_1"][1] == "other"
    eager = of_events(staged(loop.format(noted="autograd | 32 34 | synLaunch | corr=1 cat=runtime")), "stage")
    assert eager["fused_kernel_0_1"] == "optimizer"


@pytest.mark.parametrize(
    ("stage", "functions"),
    [
        ("data_loading", "get_batch|get_batch_on_this_tp_rank|get_batch_samples|load_data_from_disk"),
        ("forward", "get_batch_loss_metrics|get_batch_logps|get_batch_size|load_database"),
    ],
)
def test_functions_that_load_batches_and_those_that_work_on_them(stage: str, functions: str) -> None:
    """`get_batch_loss_metrics` of trl's DPOTrainer runs the whole forward pass."""
    for function in functions.split("|"):
        trace = staged(f"""
            main | 0 100 | ProfilerStep#1
            main | 10 40 | trl/trainer.py(9): {function}
            main | 15 30 | aten::linear | seq=1
            main | 60 70 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
        """)
        assert of_events(trace, "stage")["aten::linear"] == stage, function


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        ("data_loading", "data|data loading|DataLoader|dataload|load_data|load batch 7|get_batch|next batch"),
        ("data_loading", "get next batch|fetch mini-batch|wait for batch|batch-generator|read data"),
        (None, "dataset|data parallel|download_data|get_batch_size|next_batch_norm|load database|batch 3"),
        (None, "target_batch|compute target data|offload_batch|workload data|get_data_parallel_group"),
        ("loss", "get_batch_loss_metrics|step loss|stepscope.module: net.mseloss|stepscope.module: loss_fn"),
        ("transfer", "batch_to_device|to_device|h2d copy"),
        (
            "evaluation",
            "evaluate|validation step 5|eval 3|[pl][profile][Strategy]DDPStrategy.validation_step",
        ),
        (None, "evaluate_actions|auto_device_map"),
        ("checkpointing", "save checkpoint|[pl][profile]save_checkpoint|save_state"),
        ("forward", "stepscope.module: backward_rnn|stepscope.module: mlp.h2d|stepscope.module: glossary"),
        (None, "stepscope.block: update (loss.py:3)|stepscope.block: f (/me/backward-lm/data loader/x.py:9)"),
        (None, "[pl][profile][Callback]EarlyStopping{'monitor': 'val_loss', 'mode': 'min'}.on_train_start"),
        ("optimizer", "optimizer|optim step|opt.step()|opt_step|clip and optimizer step|Optimizer.step#SGD"),
        (None, "opt-125m|adopt step|option"),
    ],
)
def test_how_people_name_the_ranges_of_a_stage(stage: str | None, names: str) -> None:
    assert {name: stage_of_range(name) for name in names.split("|")} == dict.fromkeys(names.split("|"), stage)
