"""What is told of steps that were compiled whole, as JAX's are, by the scopes in them."""

from __future__ import annotations

from facts import module_of_events, of_events, us, warning_codes

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

ON_DEVICE = """
    main     |   0 100 | train#step_num=3
    main     |   5  60 | PjitFunction(step) | cat=runtime
    main     |  10  11 | cuLaunchKernel | corr=1
    main     |  12  13 | cuLaunchKernel | corr=2
    main     |  14  15 | cuLaunchKernel | corr=3
    main     |  16  17 | cuLaunchKernel | corr=4
    main     |  18  19 | cuLaunchKernel | corr=5
    main     |  20  21 | cuLaunchKernel | corr=6
    stream 7 |  20  22 | prepare | corr=1 scope=jit(step)/convert_element_type
    stream 7 |  22  30 | fusion | corr=2 scope=jit(step)/jvp(MLP)/Dense_0/dot_general
    stream 7 |  30  32 | loss_fusion | corr=3 scope=jit(step)/jvp()/loss/reduce_sum
    stream 7 |  32  48 | fusion_1 | corr=4 scope=jit(step)/transpose(jvp(MLP))/Dense_0/mul
    stream 7 |  48  50 | update | corr=5 scope=jit(step)/sub
    stream 7 |  50  52 | unknown | corr=6
"""


def compiled(text: str) -> Trace:
    return annotate(drawn_trace(text))


def test_operations_tell_their_own_stage_and_the_call_is_of_none() -> None:
    assert of_events(compiled(ON_DEVICE), "stage") == {
        "train#step_num=3": None,
        "PjitFunction(step)": "other",
        "cuLaunchKernel": ["other"] * 6,
        "prepare": "other",
        "fusion": "forward",
        "loss_fusion": "loss",
        "fusion_1": "backward",
        "update": "optimizer",
        "unknown": "other",
    }


def test_the_step_is_the_annotations() -> None:
    trace = compiled(ON_DEVICE)
    assert us(trace, "steps", "step", "start_ns", "end_ns", "evidence") == [(3, 0, 100, "profiler_step")]
    assert set(trace.events["step"].tolist()) == {3}


def test_a_stage_on_the_device_alone_is_a_run_without_length_on_the_cpu() -> None:
    assert us(compiled(ON_DEVICE), "stages", "stage", "start_ns", "cpu_ns", "device_ns") == [
        ("other", 0, 100, 4),
        ("forward", 12, 0, 8),
        ("loss", 14, 0, 2),
        ("backward", 16, 0, 16),
        ("optimizer", 18, 0, 2),
    ]


def test_modules_are_scopes_and_own_their_operations() -> None:
    trace = compiled(ON_DEVICE)
    columns = "path", "class", "evidence", "calls", "forward_device_ns", "backward_device_ns"
    assert us(trace, "modules", *columns) == [
        ("MLP", "MLP", "scopes", 1, 8, 16),
        ("MLP.Dense_0", "Dense", "scopes", 1, 8, 16),
        ("loss", "loss", "scopes", 1, 2, 0),
    ]
    assert module_of_events(trace)["fusion_1"] == "MLP.Dense_0"
    assert module_of_events(trace)["update"] is None


def test_a_fusion_is_of_the_kind_of_its_scope() -> None:
    kinds = of_events(compiled(ON_DEVICE), "kind")
    assert {name: kinds[name] for name in ("prepare", "fusion", "loss_fusion", "update")} == {
        "prepare": "elementwise",
        "fusion": "gemm",
        "loss_fusion": "reduction",
        "update": "optimizer",
    }


def test_without_any_backward_pass_all_that_was_compiled_is_forward() -> None:
    trace = compiled("""
        main     |  0 50 | PjitFunction(f) | cat=runtime
        worker   |  5  6 | cuLaunchKernel  | corr=1
        stream 7 | 10 20 | fusion          | corr=1 scope=jit(f)/add
    """)
    assert of_events(trace, "stage")["fusion"] == "forward"


def test_on_a_cpu_the_threads_that_run_the_program_tell_the_stages() -> None:
    trace = compiled("""
        main | 0 100 | train#step_num=0
        main | 1  90 | PjitFunction(step) | cat=runtime
        pool | 10 40 | dot.1              | scope=jit(step)/jvp(MLP)/dot_general
        pool | 40 80 | dot.2              | scope=jit(step)/transpose(jvp(MLP))/dot_general
        pool | 80 85 | fusion             | scope=jit(step)/sub
    """)
    assert us(trace, "stages", "stage", "start_ns", "end_ns") == [
        ("other", 0, 10),
        ("forward", 10, 40),
        ("backward", 40, 80),
        ("optimizer", 80, 85),
        ("other", 85, 100),
    ]


def test_work_that_no_step_waits_for_is_told() -> None:
    trace = compiled("""
        main |  0 10 | train#step_num=0
        main | 10 20 | train#step_num=1
        pool |  5  8 | dot.1 | scope=jit(step)/jvp(MLP)/dot_general
        pool | 20 90 | dot.2 | scope=jit(step)/jvp(MLP)/dot_general
    """)
    assert warning_codes(trace) == {"work_outside_steps": 1}


def test_forward_done_again_is_recomputation() -> None:
    again = "jit(step)/transpose(jvp(MLP))/checkpoint/rematted_computation/Dense_0/sin"
    trace = compiled(f"""
        main     |  0 50 | train#step_num=0
        main     |  5  6 | cuLaunchKernel | corr=1
        main     |  7  8 | cuLaunchKernel | corr=2
        stream 7 | 10 20 | first          | corr=1 scope=jit(step)/jvp(MLP)/Dense_0/sin
        stream 7 | 20 30 | second         | corr=2 scope={again}
    """)
    assert of_events(trace, "stage", "recompute")["second"] == ("backward", 1)
    assert us(trace, "modules", "path", "recompute_device_ns") == [("MLP", 10), ("MLP.Dense_0", 10)]


def test_where_only_a_device_marks_the_steps_its_work_is_of_the_step_it_starts_in() -> None:
    trace = compiled("""
        comm steps |  0 50 | step#step_num=1 | cat=annotation
        comm steps | 50 90 | step#step_num=2 | cat=annotation
        stream 7   |  5 20 | fusion.1        | scope=jit(step)/jvp(MLP)/dot_general
        stream 7   | 60 80 | fusion.2        | scope=jit(step)/jvp(MLP)/dot_general
    """)
    assert [row["step"] for row in trace["steps"].rows()] == [1, 2]
    (said,) = (row["message"] for row in trace["warnings"].rows())
    assert said.endswith("it belongs to the step in which it runs")
    found = of_events(trace, "step")
    assert (found["fusion.1"], found["fusion.2"]) == (1, 2)
    assert us(trace, "stages", "step", "stage", "device_ns") == [
        (1, "other", 0),
        (1, "forward", 15),
        (2, "other", 0),
        (2, "forward", 20),
    ]
