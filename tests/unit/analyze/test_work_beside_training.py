"""What a step does besides training: checks for NaN, calls without backward, statistics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from drawn_findings import found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.analyze.rules.slow_function import called_ms
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import StagePlace
from stepscope.read.recorded.members_json import CATEGORY, IN_LOOP
from stepscope.testing import drawn_trace
from stepscope.trace.schema import INSTANTS
from stepscope.trace.table import Table, Text

# A node of backward: with anomaly detection it checks each gradient that it returns.
NODE = """
    main | {a} {e} | autograd::engine::evaluate_function: MmBackward0 | seq={n} fwd=1
    main | {a} {b} | MmBackward0  | seq={n} fwd=1
    main | {b} {c} | {isnan}
    main | {c} {d} | aten::_is_any_true
    main | {d} {e} | aten::item
"""


def backward(isnan: str, view_us: int = 5, nodes: int = 10) -> str:
    lines = ["main | 0 10000 | ProfilerStep#0", "main | 9900 9990 | Optimizer.step#SGD.step"]
    for n in range(nodes):
        at = 100 * n
        lines.append(f"main | {at + 10} {at + 10 + view_us} | aten::view | seq={n}")
        lines.append(f"main | {at + 80} {at + 90} | aten::mm | seq={n}")
        begin = 5000 + 100 * n
        times = {letter: begin + at for letter, at in zip("abcde", (0, 40, 60, 70, 75), strict=True)}
        lines.append(NODE.format(n=n, isnan=isnan, **times))
    return "\n".join(lines)


def test_anomaly_detection_is_named_and_costs_at_most_its_checks() -> None:
    finding = found("anomaly_detection", backward("aten::isnan"))
    assert finding is not None
    assert finding.what == "Anomaly detection checks 10 gradients per step for NaN, 0.35 ms."
    assert "set_detect_anomaly(True)" in finding.advice
    assert finding.gain.ms == pytest.approx(0.35)


def test_and_the_stacks_that_show_where_an_operator_does_nothing() -> None:
    finding = found("anomaly_detection", backward("aten::isnan", view_us=60))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.35 + 10 * (0.060 - 0.010))


def test_anomaly_detection_is_at_the_line_that_turns_it_on() -> None:
    call = {"call": "set_detect_anomaly(True)", "file": "/job/train.py", "line": 7}
    created = [{"what": "anomaly_detection", "class": "set_detect_anomaly", **call}]
    finding = found("anomaly_detection", backward("aten::isnan"), capture={"created": created})
    assert finding is not None
    assert {(one.file, one.line) for one in finding.evidence} == {("/job/train.py", 7)}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(backward("aten::ones_like"), id="other operators in the nodes"),
        pytest.param(backward("aten::isnan", nodes=2), id="two nodes that look for themselves"),
    ],
)
def test_nothing_else_is_anomaly_detection(text: str) -> None:
    assert found("anomaly_detection", text) is None


CALL = """
    main | {a} {e} | stepscope.module: net
    main | {b} {d} | aten::mm | {seq}
"""
TRAINING = """
    main | 0 1000    | ProfilerStep#0
    {calls}
    main | 500 600   | autograd::engine::evaluate_function: MmBackward0 | seq=7 fwd=1
    main | 510 590   | aten::mm
    main | 700 800   | Optimizer.step#SGD.step
"""


def called(*sequences: str) -> str:
    """A step that calls a model with each of these sequence numbers; backward has number 7."""
    calls = [
        CALL.format(a=100 * n + 10, b=100 * n + 20, d=100 * n + 80, e=100 * n + 90, seq=seq)
        for n, seq in enumerate(sequences)
    ]
    return TRAINING.format(calls="\n".join(calls))


def test_calls_of_what_is_trained_that_no_backward_reaches() -> None:
    finding = found("forward_without_backward", called("seq=7", "seq=8", "seq=9"))
    assert finding is not None
    assert finding.what == (
        "Trained modules run without backward 2 times per step, 0.16 ms. Gradients are enabled there."
    )
    assert "torch.no_grad()" in finding.advice
    assert finding.severity == "warning"  # at most: not every such call can be left out
    assert {one.code for one in finding.evidence} == {""}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(called("seq=7"), id="each call has its backward"),
        pytest.param(called("seq=7", "", ""), id="under no_grad, operators have no number"),
        pytest.param(called("seq=7").replace("mm | seq=7", "mm | seq=3"), id="a frozen model"),
    ],
)
def test_other_calls_are_as_they_should_be(text: str) -> None:
    assert found("forward_without_backward", text) is None


STATISTICS = """
    main | 0 1000    | ProfilerStep#0
    main | 10 200    | stepscope.module: net
    main | 20 190    | aten::mm | seq=7
    main | 300 400   | autograd::engine::evaluate_function: MmBackward0 | seq=7 fwd=1
    main | 310 390   | aten::mm
    main | 450 500   | Optimizer.step#SGD.step
    main | 510 {a}   | aten::histc
    main | {a} {b}   | aten::linalg_vector_norm
"""


def test_operators_between_the_stages_are_named_by_time() -> None:
    finding = found("work_between_stages", STATISTICS.format(a=900, b=950))
    assert finding is not None
    assert finding.what == (
        "Operators outside forward, backward and optimizer take 0.44 ms per step (44%). "
        "Longest: aten::histc once, aten::linalg_vector_norm once."
    )
    assert "every N steps" in finding.advice


def test_what_python_takes_between_them_is_saved_too() -> None:
    """An average of the weights, one after the other."""
    text = STATISTICS.format(a=511, b=512)
    loop = "\n".join(f"main | {at} {at + 20} | aten::mul_" for at in range(520, 760, 30))
    finding = found("work_between_stages", f"{text}\n{loop}")
    assert finding is not None
    assert "take 0.162 ms per step (16%). Longest: aten::mul_ 8 times" in finding.what
    assert finding.gain.ms == pytest.approx(0.24)


def test_a_rollout_of_the_model_is_no_statistic() -> None:
    rollout = "main | 510 920 | stepscope.module: net\nmain | 520 900 | aten::mm"
    text = STATISTICS.format(a=930, b=940).replace("main | 510 930", "main | 921 930")
    assert found("work_between_stages", f"{text}\n{rollout}") is None


def test_an_average_that_takes_most_of_the_step_is_a_finding_with_its_copies() -> None:
    """Each value of `state_dict()` as a copy in 64 bits: all of that goes with the loop."""
    text = STATISTICS.replace("main | 0 1000 ", "main | 0 4000 ").format(a=511, b=512)
    loop = "\n".join(
        f"main | {at} {at + 60} | aten::to\nmain | {at + 60} {at + 100} | aten::mul"
        for at in range(520, 3920, 100)
    )
    finding = found("work_between_stages", f"{text}\n{loop}")
    assert finding is not None
    assert "take 3.4 ms per step (85%). Longest: aten::to 34 times, aten::mul 34 times" in finding.what


def test_the_copy_of_a_batch_alone_is_no_statistic() -> None:
    text = STATISTICS.format(a=520, b=530).replace("aten::histc", "aten::to")
    copy = "main | 540 840 | aten::to"
    assert found("work_between_stages", f"{text}\n{copy}") is None


def test_what_takes_most_of_a_step_may_be_the_work_itself_where_no_gradient_is_seen() -> None:
    text = STATISTICS.format(a=900, b=950)
    without = "\n".join(line for line in text.splitlines() if "MmBackward0" not in line)
    assert found("work_between_stages", without) is None


def test_a_few_of_them_are_no_finding() -> None:
    assert found("work_between_stages", STATISTICS.format(a=520, b=530)) is None


@pytest.mark.parametrize(("inner", "counts"), [("aten::mm | seq=7", False), ("add", True)])
def test_a_loop_of_a_compiled_program_around_a_stage_is_not_between_stages(inner: str, counts: bool) -> None:
    """`lax.scan` over steps is one operation, `while`, around what each of them computes."""
    loop = f"main | 510 920 | while.1\nmain | 520 900 | {inner}"
    text = STATISTICS.format(a=930, b=940).replace("main | 510 930   | aten::histc", loop)
    assert (found("work_between_stages", text) is not None) == counts


GRADIENT_AND_UPDATE = """
    main | 0 1000  | train#step_num=0       | cat=annotation
    main | 20 200  | dot                    | scope=jit(loss)/jvp()/dot_general
    main | 200 500 | dot.1                  | scope=jit(loss)/transpose(jvp())/dot_general
    main | 520 800 | multiply_subtract_fusion | scope=jit(descend)/sub
"""


def test_the_update_may_be_among_them_where_none_is_recognized() -> None:
    """A function of the user's whose name does not say that it updates weights."""
    assert found("work_between_stages", GRADIENT_AND_UPDATE, framework="jax") is None


def test_in_jax_the_advice_is_to_compile_them() -> None:
    text = STATISTICS.format(a=900, b=950)
    finding = found("work_between_stages", text, framework="jax")
    assert finding is not None
    assert "in one call (jax.jit)." in finding.advice


def test_without_training_nothing_is_between_its_stages() -> None:
    text = "main | 0 1000 | ProfilerStep#0\n main | 10 900 | aten::histc"
    assert found("work_between_stages", text) is None


def found_with_samples(
    rule: str, text: str, begin_us: int, end_us: int, name: str, kind: str = IN_LOOP, framework: str = ""
) -> Finding:
    """What a rule finds where 20 samples of the training loop saw one line."""
    count = 20
    instants = Table(
        INSTANTS,
        {
            "time_ns": np.linspace(1000 * begin_us, 1000 * end_us, count).astype(np.int64),
            "track": np.zeros(count, np.int64),
            "source": np.full(count, -1),
            "name": Text.constant(name, count),
            "category": Text.constant(kind, count),
            "phase": Text.constant("i", count),
        },
    )
    trace = annotate(drawn_trace(text, framework=framework).with_table(instants))
    (mine,) = [one for one in apply_rules(RuleContext(trace), RULES) if one.rule == rule]
    return mine


def test_the_line_is_that_which_samples_saw() -> None:
    finding = found_with_samples(
        "work_between_stages", STATISTICS.format(a=900, b=950), *(520, 900), "log (/home/me/train.py:31)"
    )
    assert " Most is in me/train.py:31 in log. Longest: aten::histc once" in finding.what


LOADING = """
    main | 0 1000    | ProfilerStep#0
    main | 10 600    | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 610 900   | aten::mm
"""


def test_a_batch_that_loads_in_the_main_process_has_the_line_that_samples_saw() -> None:
    finding = found_with_samples(
        "input_bound", LOADING, *(20, 590), "Audio.__getitem__ (/home/me/data.py:8)", CATEGORY
    )
    assert finding.what.endswith("Most of it is in me/data.py:8 in Audio.__getitem__.")


def test_the_line_that_asks_for_the_batch_says_nothing() -> None:
    finding = found_with_samples("input_bound", LOADING, *(20, 590), "main (/home/me/train.py:8)")
    assert "Most of it" not in finding.what


def test_python_of_the_loop_has_the_line_that_samples_saw() -> None:
    """Otherwise the finding asks to record again with stacks."""
    text = STATISTICS.format(a=511, b=512).replace("0 1000", "0 9000")
    finding = found_with_samples("cpu_latency", text, *(1000, 8900), "<module> (/home/me/train.py:13)")
    assert "Mostly in me/train.py:13" in finding.what
    assert "--stack" not in finding.advice
    without = found("cpu_latency", text)
    assert without is not None
    assert "--stack" in without.advice


CALLS_OF_JAX = "\n".join(
    f"main | {at} {at + 1} | stepscope.step#step_num={at // 10_000} | cat=annotation\n"
    f"main | {at + 2} {at + 100} | PjitFunction(train_step) | cat=runtime\n"
    f"pool | {at + 20} {at + 90} | dot.1 | scope=jit(train_step)/jvp()/dot"
    for at in range(0, 40_000, 10_000)
)


def test_python_between_calls_of_jax_has_the_line_that_samples_saw() -> None:
    """Steps of JAX are no ranges, so the time is outside of all; the calls are the evidence."""
    finding = found_with_samples(
        "cpu_latency", CALLS_OF_JAX, *(200, 29_900), "load (/home/me/data.py:7)", CATEGORY, "jax"
    )
    assert "runs only Python for 99% of the step" in finding.what
    assert "Mostly in me/data.py:7 in load" in finding.what
    assert {place.name for place in finding.evidence} == {"PjitFunction(train_step)"}


def test_a_function_may_save_what_it_calls_too() -> None:
    """Each has its own samples; what they call in turn, as in a comprehension, is theirs."""

    def sampled(function: str, ms: float, *called: str) -> StagePlace:
        return StagePlace("other", function, "/x/a.py", 1, ms, 0.1, 0.0, called=called)

    outer = sampled("assign", 2.0, "fit (/x/a.py:9)")
    inner = sampled("iou", 3.0, "assign.<locals>.<listcomp> (/x/a.py:5)", "fit (/x/a.py:9)")
    others = [sampled("assignment", 4.0), sampled("log", 5.0, "reassign (/x/a.py:7)")]
    measures = SimpleNamespace(summary=SimpleNamespace(places=[outer, inner, *others]))
    context = cast("RuleContext", SimpleNamespace(measures=measures))
    assert (called_ms(context, outer), called_ms(context, inner)) == (3.0, 0)
