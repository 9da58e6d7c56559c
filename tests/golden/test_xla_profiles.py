"""What is known of real XLA profiles: of JAX on the CPU (`jax/record*.py`), and on a GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import stepscope
from stepscope.analyze import RULES, Finding, RuleContext
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.timeline import Timeline
from stepscope.trace.trace import Trace

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cpu() -> Trace:
    return stepscope.open(HERE / "jax/mlp_cpu.xplane.pb.gz", cache=False)


def test_steps_are_those_that_the_script_annotates(cpu: Trace) -> None:
    assert cpu["steps"]["step"].tolist() == [10, 11, 12, 13]
    assert set(cpu["steps"].text("evidence")) == {"profiler_step"}
    assert cpu.metadata.framework == "jax"
    assert not len(cpu["warnings"])


def test_stages_are_told_by_transformations_scopes_and_ranges(cpu: Trace) -> None:
    stages = Counter((row["step"], row["stage"]) for row in cpu["stages"].rows())
    for step in (10, 11, 12, 13):
        for stage in ("data_loading", "forward", "loss", "backward"):
            assert stages[step, stage] >= 1
    operators = Counter(row["stage"] for row in cpu.events.rows() if row["scope"] and row["step"] is not None)
    assert set(operators) == {"other", "forward", "loss", "backward", "optimizer", "data_loading"}


def test_modules_are_the_named_scopes(cpu: Trace) -> None:
    rows = {row["path"]: row for row in cpu["modules"].rows()}
    assert set(rows) == {"MLP", "MLP.Dense_0", "MLP.Dense_1", "MLP.Dense_2", "loss"}
    for path, row in rows.items():
        assert row["evidence"] == "scopes"
        assert row["calls"] == 4
        assert min(row["forward_cpu_ns"], row["backward_cpu_ns"]) > 0, path
    inner = sum(row["backward_cpu_ns"] for path, row in rows.items() if "." in path)
    assert inner <= rows["MLP"]["backward_cpu_ns"]


def test_an_operation_names_its_program_and_its_kind(cpu: Trace) -> None:
    named = [row for row in cpu.events.rows() if row["name"] == "dot" and row["step"] == 10]
    (dot,) = named
    # XLA took a transposition into this product, and gave it the name of that.
    assert dot["scope"] == "jit(train_step)/transpose(jvp(MLP))/Dense_0/transpose"
    assert (dot["kind"], dot["stage"], dot["category"]) == ("gemm", "backward", "cpu_op")
    assert cpu.event_arguments(dot["id"])["hlo_module"] == "jit_train_step"


def test_a_thread_that_waits_for_another_is_not_the_longest(cpu: Trace) -> None:
    waits = [row for row in cpu.events.rows() if row["name"].endswith("(wait for completion)")]
    assert waits
    assert {row["category"] for row in waits} == {"sync"}
    level = Timeline(cpu).level("s11.0")
    assert {"forward", "backward"} <= {one.name for one in level.operations}
    stages = {one.track for one in level.operations if one.kind == "stage"}
    assert stages <= {one.id for one in level.resources if one.shown}


@pytest.fixture(scope="module")
def mi300x(traces: Path) -> Trace:
    return stepscope.open(traces / "jax_xplane/conv_mi300x.xplane.pb", cache=False)


def test_five_runs_on_eight_devices(mi300x: Trace) -> None:
    names = Counter(mi300x.events.text("name"))
    assert names["input_transpose_fusion.kd"] == 5 * 8
    tracks = mi300x["tracks"]
    kernels = mi300x.events.text("category").mask("kernel")
    assert set(tracks["device"][mi300x.events["track"][kernels]].tolist()) == set(range(8))
    assert len(mi300x.metadata.devices) == 8


def test_every_kernel_is_tied_to_its_launch(mi300x: Trace) -> None:
    category = mi300x.events.text("category")
    kernels, copies = category.mask("kernel").sum(), category.mask("memcpy").sum()
    assert (kernels, copies, len(mi300x["launches"])) == (200, 35, 235)
    assert (mi300x["launches"]["delay_ns"] > 0).all()


def test_kernels_without_a_telling_name_are_known_by_their_program(mi300x: Trace) -> None:
    """A transposition has the scope of the convolution whose output it transposes."""
    rows = [row for row in mi300x.events.rows() if row["name"] == "input_transpose_fusion.kd"]
    assert {row["scope"] for row in rows} == {"jit(forward_3d_conv)/conv_general_dilated"}
    assert {(row["kind"], row["stage"]) for row in rows} == {("elementwise", "forward")}


def test_a_convolution_of_two_kernels_counts_once(mi300x: Trace) -> None:
    """16 channels of 32 x 60 x 104 to 5120, by filters of 1 x 2 x 2 that padding never meets."""
    found = summarize(mi300x).efficiency
    assert found is not None
    assert found.flops == pytest.approx(8 * 2 * 16 * 5120 * 32 * 60 * 104)


def test_operations_of_the_network_equal_the_formula(cpu: Trace) -> None:
    """Forward, gradients of all weights, and of the inputs of all layers but the first."""
    layers = [2 * 256 * inputs * outputs for inputs, outputs in ((64, 128), (128, 128), (128, 10))]
    found = summarize(cpu)
    assert found.efficiency is not None
    assert found.efficiency.flops == 3 * sum(layers) - layers[0]
    (network, _) = found.modules
    assert network.flops == found.efficiency.flops
    assert network.intensity is not None


def test_operations_name_the_line_that_they_were_traced_at(cpu: Trace) -> None:
    lines = (HERE / "jax/record.py").read_text().splitlines()
    (dot,) = (row for row in cpu.events.rows() if row["name"] == "dot" and row["step"] == 10)
    file, _, line = cpu.event_arguments(dot["id"])["source"].rpartition(":")
    assert file.endswith("/record.py")
    assert "x @ layer" in lines[int(line) - 1]


@pytest.fixture(scope="module")
def slow() -> Trace:
    return stepscope.open(HERE / "jax/slow_cpu.xplane.pb.gz", cache=False)


# Each rule that is JAX's own, and what is on the line that it shows.
SHOWN = {
    "recompilation": "jax.value_and_grad(loss_of)",  # the first of train_step
    "missing_donation": "jax.value_and_grad(loss_of)",
    "small_programs": "mean = mean * 0.9",
    "host_callbacks": "jax.debug.callback",
}


def findings(rule: str, trace: Trace) -> list[Finding]:
    (meant,) = [one for one in RULES if one.name == rule]
    return list(meant.function(RuleContext(trace)))


@pytest.mark.parametrize("rule", SHOWN)
def test_a_rule_of_jax_shows_the_line(rule: str, slow: Trace) -> None:
    lines = (HERE / "jax/record_slow.py").read_text().splitlines()
    (finding,) = findings(rule, slow)
    places = [place for place in finding.evidence if place.file.endswith("/record_slow.py")]
    assert SHOWN[rule] in lines[(places[0].line or 0) - 1]


@pytest.mark.parametrize("rule", SHOWN)
def test_a_rule_of_jax_is_silent_where_there_is_no_such_defect(rule: str, cpu: Trace) -> None:
    assert not findings(rule, cpu)
