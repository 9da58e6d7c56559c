"""What rules say of a trace of JAX: in its words, or nothing."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from drawn_findings import A100, V100, found
from test_device_rules import DRAWN
from test_host_rules import logged

from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

# Rules that know kernels, stages and ranges; the others look for operators of PyTorch.
OF_ANY_FRAMEWORK = (
    "hotspot",
    "kernel_fusion",
    "cpu_latency",
    "input_bound",
    "layout_conversions",
    "optimizer_loop",
    "fp32_matmul",
    "exposed_communication",
    "allocator_churn",
)
PYTORCHS = re.compile(
    r"torch|DataLoader|\bF\.|(?<!jax\.)\bnn\.|\.cpu\(|num_workers|no_sync|channels_last|fused=|--stack"
)
COPYING_BACK = """
    main     |    0 1000 | train#step_num=0  | cat=annotation
    main     |   10   20 | cudaLaunchKernel  | corr=1
    stream 7 |   20  420 | gemm_fusion       | corr=1
    main     |   30  440 | cuMemcpyDtoHAsync | corr=2 cat=runtime
    stream 7 |  421  422 | MemcpyD2H         | corr=2 cat=memcpy
    main     |  500  504 | cudaLaunchKernel  | corr=3
    stream 7 |  510  990 | gemm_fusion       | corr=3
"""
SYNCHRONISING = """
    main     |    0 1000 | train#step_num=0  | cat=annotation
    main     |   10   20 | cudaLaunchKernel  | corr=1
    stream 7 |   20  420 | gemm_fusion       | corr=1
    main     |   30  440 | cuStreamSynchronize | cat=runtime
    main     |  500  504 | cudaLaunchKernel  | corr=3
    stream 7 |  510  990 | gemm_fusion       | corr=3
"""


@pytest.mark.parametrize("rule", OF_ANY_FRAMEWORK)
@pytest.mark.parametrize("devices", [V100, A100], ids=["V100", "A100"])
def test_it_speaks_of_what_jax_has(rule: str, devices: tuple[dict[str, object], ...]) -> None:
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    text = DRAWN[rule][0].replace(loading, "load_batch | cat=annotation")
    finding = found(rule, text, devices=devices, framework="jax")
    assert finding is not None
    assert not PYTORCHS.search(f"{finding.what} {finding.advice}")
    of_torch = found(rule, text, devices=devices, framework="pytorch")
    assert of_torch is not None
    assert of_torch.advice != finding.advice


@pytest.mark.parametrize(("program", "fuses"), [("step", False), ("part{}", True)])
def test_what_xla_could_fuse_is_not_advised_to_be_fused(program: str, fuses: bool) -> None:
    """Chains of small kernels of one program, and of a program for each of them."""
    lines = ["main | 0 2000 | train#step_num=0 | cat=annotation"]
    for number in range(30):
        begin = 10 + 60 * number
        scope = f"jit({program.format(number)})/jvp()/add"
        lines += [
            f"main | {begin} {begin + 5} | cudaLaunchKernel | corr={number + 1}",
            f"stream 7 | {begin + 10} {begin + 14} | add_fusion | corr={number + 1} scope={scope}",
        ]
    finding = found("kernel_fusion", "\n".join(lines), framework="jax", devices=V100)
    assert (finding is not None) == fuses


@pytest.mark.parametrize(("name", "hot"), [("all-reduce.5", False), ("reduce-window.5", True)])
def test_a_collective_of_the_cpu_is_no_hotspot(name: str, hot: bool) -> None:
    text = f"""
        main | 0 1000 | train#step_num=0 | cat=annotation
        main | 5  900 | {name}           | cat=cpu_op scope=jit(step)/psum kind=reduction
    """
    assert (found("hotspot", text, framework="jax") is not None) == hot


def test_an_update_in_one_program_is_no_loop_of_python() -> None:
    of_torch, of_jax = (
        found("optimizer_loop", DRAWN["optimizer_loop"][0], framework=framework)
        for framework in ("pytorch", "jax")
    )
    assert of_torch is None or "Python loop" in of_torch.what
    assert of_jax is None or "Python" not in of_jax.what


def test_a_result_that_is_read_in_each_step() -> None:
    finding = found("synchronizing_calls", COPYING_BACK, framework="jax", devices=V100)
    assert finding is not None
    assert "float(x), x.item(), np.asarray(x)" in finding.what
    assert "x.copy_to_host_async()" in finding.advice


def test_waiting_by_the_runtime_is_not_the_programs() -> None:
    assert found("synchronizing_calls", SYNCHRONISING, framework="pytorch", devices=V100)
    assert found("synchronizing_calls", SYNCHRONISING, framework="jax", devices=V100) is None


def test_python_between_the_steps_on_a_cpu() -> None:
    finding = found("cpu_latency", logged(0, 4) + logged(10_000, 3), framework="jax")
    assert finding is not None
    assert "jax.jit" in finding.advice
    assert "python_tracer_level=1" in finding.advice
    assert not PYTORCHS.search(finding.advice)


@pytest.mark.parametrize(("framework", "told"), [("pytorch", True), ("jax", False)])
def test_no_recording_is_advised_that_cannot_tell_lines_of_jax(
    framework: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = annotate(drawn_trace(DRAWN["hotspot"][0], framework=framework, devices=V100))
    monkeypatch.setattr("stepscope.facts.load.open", lambda *_, **__: trace)
    out = CliRunner().invoke(stepscope, ["analyze", "trace"]).output
    assert "hotspot" in out
    assert ("record with `stepscope run --contexts`" in out) == told


def test_what_jax_compiles_in_the_steps() -> None:
    text = """
        main | 0 1000 | train#step_num=0 | cat=annotation
        main | 10 800 | backend_compile_and_load | cat=annotation
        main | 20 700 | PjRtCpuClient::Compile | cat=runtime
        main | 810 900 | dot
    """
    finding = found("recompilation", text, framework="jax")
    assert finding is not None
    assert finding.what == "jax.jit compiles once per step, 0.79 ms."
    assert "outside the loop" in finding.advice
    assert not PYTORCHS.search(f"{finding.what} {finding.advice}")


def test_a_trace_of_another_framework_gets_no_advice_on_pytorch_or_jax() -> None:
    drawn = logged(0, 4)
    of_tensorflow = found("cpu_latency", drawn, framework="tensorflow")
    assert of_tensorflow is not None
    assert of_tensorflow.advice == (
        "The trace is of tensorflow; stepscope has advice for PyTorch and JAX only."
    )
