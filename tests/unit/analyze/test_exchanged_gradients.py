"""Gradients that ranks exchange after backward passes, and what they exchange besides."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_findings import alone, found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import KERNEL_KINDS
from stepscope.trace.table import Text

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def step(*parts: str, reduced: tuple[int, ...] = (), inside: str = NODE) -> str:
    """A step of parts of 100 us; the backward passes of these numbers exchange for 60 us."""
    lines, passes = [f"main | 0 {100 * len(parts)} | ProfilerStep#0"], 0
    for number, part in enumerate(parts):
        at = 100 * number
        if part == FORWARD:
            lines.append(f"main | {at} {at + 90} | aten::mm | seq={number + 1}")
        elif part == UPDATE:
            lines.append(f"main | {at} {at + 90} | Optimizer.step#SGD.step")
        else:
            node = "autograd::engine::evaluate_function: MmBackward0"
            lines.append(f"main | {at} {at + 30} | {node} | seq={number} fwd=1")
            if passes in reduced:
                lines.append(f"main | {at + 30} {at + 95} | {inside}")
                lines.append(f"main | {at + 31} {at + 34} | c10d::allreduce_")
                lines.append(f"gloo | {at + 34} {at + 94} | gloo:all_reduce")
            passes += 1
    return "\n".join(lines)


TWO_PASSES = (FORWARD, BACKWARD, FORWARD, BACKWARD, UPDATE)


@pytest.mark.parametrize(
    ("parts", "reduced", "says"),
    [
        (TWO_PASSES, (0, 1), "after each of 2 backward passes"),
        (TWO_PASSES, (1,), ""),  # under no_sync()
        ((FORWARD, BACKWARD, UPDATE) * 2, (0, 1), ""),  # as critic and generator
        ((FORWARD, BACKWARD, UPDATE), (0,), ""),
    ],
)
def test_passes_before_the_last_need_no_exchange(
    parts: tuple[str, ...], reduced: tuple[int, ...], says: str
) -> None:
    finding = found("exchange_per_pass", step(*parts, reduced=reduced))
    assert (says in finding.what and bool(says)) if finding else not says
    if finding:
        assert finding.gain.ms == pytest.approx(0.065)  # with the hook around its call
        assert "no_sync()" in finding.advice


def test_statistics_that_backward_exchanges_are_needed_in_each_pass() -> None:
    node = "autograd::engine::evaluate_function: SyncBatchNormBackward"
    assert found("exchange_per_pass", step(*TWO_PASSES, reduced=(0, 1), inside=node)) is None


@pytest.mark.parametrize(
    ("at", "call", "name", "advice"),
    [
        (105, "c10d::allreduce_", "gloo:all_reduce", "bucket_cap_mb"),
        (205, "c10d::allreduce_", "gloo:all_reduce", "every N steps"),
        (205, "c10d::barrier", "gloo:barrier", "every N steps"),
        (205, "c10d::recv_", "gloo:recv", "Overlap the exchange"),
        (205, "c10d::reduce_scatter_", "gloo:reduce_scatter", "FSDP prefetching"),
        (205, "c10d::allreduce_", "gloo:all_reduce | bytes=1048576", "bucket_cap_mb"),
        (205, "c10d::allreduce_", "gloo:all_reduce | bytes=1048575", "every N steps"),
    ],
)
def test_advice_is_on_what_takes_most_of_the_communication(
    at: float, call: str, name: str, advice: str
) -> None:
    """Gradients in backward, metrics after it, what a pipeline receives."""
    text = f"""
        main | 0 400 | ProfilerStep#0
        main | 10 100 | aten::mm | seq=1
        main | 100 110 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 200 202 | Optimizer.step#SGD.step
        main | {at} {at + 1} | {call}
        gloo | {at + 1} {at + 81} | {name}
        main | 300 302 | aten::item
    """
    finding = found("exposed_communication", text)
    assert finding is not None
    assert advice in finding.advice


def of_buckets(parameter_bytes: int, node: str = NODE) -> list[tuple[str, float]]:
    """What `small_buckets` says of 20 all-reduces of gloo, which records no sizes."""
    lines = ["main | 0 4000 | ProfilerStep#0", "main | 10 100 | stepscope.module: layer"]
    lines += ["main | 20 90 | aten::mm | seq=1"]
    for at in range(200, 4000, 190):
        lines.append(f"main | {at} {at + 100} | {node}")
        lines.append(f"main | {at + 10} {at + 15} | c10d::allreduce_")
        lines.append(f"gloo | {at + 20} {at + 90} | gloo:all_reduce")
    trace = annotate(drawn_trace("\n".join(lines)))
    sizes = np.full(len(trace["modules"]), parameter_bytes, np.int64)
    modules = trace["modules"].with_columns(parameters=sizes // 4, parameter_bytes=sizes)
    findings = apply_rules(RuleContext(trace.with_table(modules)), RULES)
    return [(one.what, one.gain.ms) for one in findings if one.rule == "small_buckets"]


def test_buckets_without_a_recorded_size_share_the_gradients() -> None:
    ((said, gain_ms),) = of_buckets(2_000_000)
    assert said == "Each step runs 20 all-reduces of 100 kB, 1.4 ms: latency dominates."
    assert gain_ms == pytest.approx(19 * 0.07)  # one is left
    assert not of_buckets(200_000_000)
    assert not of_buckets(2_000_000, node="SyncBatchNormBackward")


def test_a_device_may_wait_for_what_the_host_exchanges() -> None:
    """500 of 1,000 us the GPU has no work, since Gloo exchanges its gradients."""
    finding = found(
        "exposed_communication",
        """
        main     |   0 1000 | ProfilerStep#0
        main     |  10   20 | cudaLaunchKernel | corr=1
        gloo     | 300  800 | gloo:all_reduce | cat=communication
        main     | 810  820 | cudaLaunchKernel | corr=2
        stream 7 |  25  300 | gemm | corr=1
        stream 7 | 825  999 | adam | corr=2
        """,
    )
    assert finding is not None
    assert finding.what == "Communication is exposed for 0.5 ms of the step (50%)."


# -- in a compiled loop of JAX over micro-batches

PSUM = "jit(step)/shard_map/while/body/closed_call/psum"


def compiled_step(kernel: str, psum: str = PSUM) -> str:
    """A step of 650 us, which a device or a CPU computes in 4 turns.

    Each has 100 us of products and 60 us of an exchange under this scope.
    """
    lines = ["main | 0 650 | train#step_num=0", "main | 1 649 | PjitFunction(step) | cat=runtime"]
    if kernel.startswith("nccl"):
        lines += [f"main | {2 * at + 1} {2 * at + 2} | cuLaunchKernel | corr={at}" for at in range(8)]
        lines += ["main | 20 648 | cudaStreamSynchronize"]
    on = "stream 7" if len(lines) > 2 else "main"
    for turn in range(4):
        at = 5 + 160 * turn
        products = f"corr={2 * turn} scope=jit(step)/transpose(jvp(f))/dot_general"
        lines += [f"{on} | {at} {at + 100} | dot.1 | {products}"]
        lines += [f"{on} | {at + 100} {at + 160} | {kernel} | corr={2 * turn + 1} scope={psum}"]
    return "\n".join(lines)


def in_loop(text: str, batches: int = 4) -> list[Finding]:
    loops = {"jit_step": {"steps": 1, "micro_batches": batches}}
    trace = drawn_trace(text, framework="jax", properties={"program_loops": loops})
    known = trace.events.text("scope").where(lambda scope: scope.endswith("psum"))
    kinds = np.where(known, KERNEL_KINDS.index("communication"), -1)  # as a reader of XLA's programs says
    trace = trace.with_events(kind=Text(kinds.astype(np.int8), KERNEL_KINDS))
    return alone("exchange_per_pass", annotate(trace))


@pytest.mark.parametrize("kernel", ["ncclDevKernel_AllReduce", "all-reduce"], ids=["device", "CPU"])
def test_a_loop_exchanges_the_gradients_of_each_micro_batch(kernel: str) -> None:
    [finding] = in_loop(compiled_step(kernel))
    assert finding.what == "Gradients are exchanged after each of 4 micro-batches of a step."
    assert finding.gain.ms == pytest.approx(0.75 * 0.240, abs=0.01)


@pytest.mark.parametrize(
    ("psum", "batches"),
    [
        ("jit(step)/shard_map/psum", 4),  # after the loop
        ("jit(step)/shard_map/while/body/transpose(jvp(f))/psum", 4),  # of a layer
        (PSUM, 1),  # a loop over steps
    ],
)
def test_exchanges_that_each_turn_needs(psum: str, batches: int) -> None:
    assert not in_loop(compiled_step("ncclDevKernel_AllReduce", psum), batches)
