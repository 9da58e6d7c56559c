"""Rules in JAX's terms: each on a drawn step where it fires, and on one where it is silent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from drawn_findings import V100, findings, found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.analyze.rules.small_programs import _python_between
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import FRAMES, ORIGINS
from stepscope.trace.table import Table, Text

STEP = "main | 0 20000 | train#step_num=0 | cat=annotation\n"


def call(name: str, start: int, end: int, source: str, operation: str = "fusion") -> str:
    """A call of a compiled function, in which its operation runs."""
    middle = (start + end) // 2
    return (
        f"main | {start} {end} | PjitFunction({name}) | cat=runtime\n"
        f"main | {middle} {end} | {operation} | hlo__module=jit_{name} source={source}\n"
    )


def found_in(rule: str, *calls: str, **metadata: Any) -> Finding | None:
    return found(rule, STEP + "".join(calls), framework="jax", **metadata)


def context_of(text: str, devices: tuple[dict[str, Any], ...]) -> RuleContext:
    return RuleContext(annotate(drawn_trace(text, framework="jax", devices=devices)))


def place(finding: Finding | None) -> tuple[str, int | None, str]:
    assert finding is not None
    first = finding.evidence[0]
    return first.file, first.line, first.function


# -- recompilation


def compiling(name: str, start: int) -> str:
    """A call that compiles for 800 us, before its operation runs."""
    return (
        call(name, start, start + 1000, "/home/me/train.py:12")
        + f"main | {start} {start + 800} | backend_compile_and_load | cat=annotation\n"
    )


def test_a_function_that_is_compiled_in_each_step() -> None:
    """The call encloses the compilation, as it begins at the same time and lasts longer."""
    finding = found_in("recompilation", compiling("train_step", 100))
    assert finding is not None
    assert finding.what == (
        "jax.jit compiles once per step, 0.8 ms. Mostly train_step. See me/train.py:12 in train_step."
    )
    assert place(finding) == ("/home/me/train.py", 12, "train_step")


@pytest.mark.parametrize(("again", "rule"), [(False, "first_use"), (True, "recompilation")])
def test_one_compilation_in_three_steps_recurs_where_the_run_compiles_again(again: bool, rule: str) -> None:
    starts = [2000 * number for number in range(4)]
    text = "".join(
        f"main | {at} {at + 2000} | train#step_num={at // 2000} | cat=annotation\n" for at in starts
    )
    text += compiling("train_step", 4100)
    text += "".join(call("train_step", at + 100, at + 1100, "train.py:12") for at in starts if at != 4000)
    found = findings(text, framework="jax", capture={"compiles_again": again})
    assert {"first_use", "recompilation"} & {one.rule for one in found} == {rule}


def test_a_run_compiles_again_and_again_between_the_recorded_steps() -> None:
    note = "XLA compiled train_step (train.py:12) 16 times, 30.5 of 61 s: the shapes of its arguments change"
    text = call("train_step", 0, 1000, "train.py:12")
    (finding,) = [
        one
        for one in findings(text, framework="jax", capture={"warnings": [note]})
        if one.rule == "recompilation"
    ]
    assert finding.what.startswith("jax.jit compiled train_step (train.py:12) 16 times, 30.5 of 61 s.")
    assert (finding.share, finding.of) == (0.5, "whole run")


def test_a_function_that_is_only_called() -> None:
    assert found_in("recompilation", call("train_step", 0, 1000, "train.py:12")) is None


# -- operations outside of a compiled function


def eager(count: int, length: int = 50) -> list[str]:
    return [
        call("multiply", 1000 + 200 * number, 1000 + 200 * number + length, "train.py:40")
        for number in range(count)
    ]


def test_operations_one_by_one_in_a_python_loop() -> None:
    step = call("train_step", 10, 900, "train.py:12")
    finding = found_in("small_programs", step, *eager(24))
    assert finding is not None
    assert finding.what == "Each step starts 24 small programs one by one, 1.2 ms. Mostly multiply."
    assert "jax.lax.scan" in finding.advice
    assert place(finding) == ("train.py", 40, "multiply")
    assert finding.gain.ms == pytest.approx(24 * 0.05 + 23 * 0.15)  # with the Python between


def test_calls_with_little_python_between_are_a_change_to_try() -> None:
    calls = [call("multiply", at, at + 195, "train.py:40") for at in range(1000, 5800, 200)]
    finding = found_in("small_programs", *calls)
    assert finding is not None
    assert finding.gain.changes == ("scale:select=operator=PjitFunction(multiply),factor=0",)


def test_one_compiled_step_saves_all_but_long_operations_and_long_gaps() -> None:
    shorter = [call("layer", at, at + 400, "train.py:7") for at in (7000, 7500)]
    longer = [call("solve", at, at + 1000, "train.py:8") for at in (9000, 11000)]
    finding = found_in("small_programs", *eager(24), *shorter, *longer)
    assert finding is not None
    small = 24 * 0.05 + 23 * 0.15
    assert finding.gain.ms == pytest.approx(small)  # the last one is 1.35 ms before the next call
    layers, before_solving = 2 * 0.4 + 0.1, 2 * 0.5  # its operation is the second half of a call
    assert finding.gain.stated_ms == pytest.approx((0.0, small + layers + before_solving))


def test_waits_and_long_times_between_calls_do_not_go_with_them() -> None:
    wait = "main | 1060 1190 | wait: float(x) | cat=runtime\n"
    late = [call("multiply", 9000, 9050, "train.py:40")]
    finding = found_in("small_programs", *eager(24), wait, *late)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(25 * 0.05 + 23 * 0.15 - 0.13)


@pytest.mark.parametrize(("devices", "waited"), [((), 22), (V100, 0)])
def test_waits_for_each_call_of_a_loop_go_with_it(devices: tuple[dict[str, Any], ...], waited: int) -> None:
    """On a CPU one call of jax.vmap computes what they wait for, but the first may wait for others."""
    starts = range(1060, 5660, 200)
    waits = "".join(f"main | {at} {at + 130} | wait: float(x) | cat=runtime\n" for at in starts)
    busy = "stream 7 | 0 1 | gemm | corr=1\nmain | 0 1 | cudaLaunchKernel | corr=1\n" if devices else ""
    calls = context_of(STEP + busy + "".join(eager(24)) + waits, devices)
    between = _python_between(calls, *[calls.search.find(r"^PjitFunction")] * 2)
    assert between.total() / 1e3 == pytest.approx(23 * 150 - (23 - waited) * 130)


@pytest.mark.parametrize(
    "calls",
    [eager(19), eager(24, 190)[:1], eager(24, 5000)[:4], [call("train_step", 0, 19000, "t.py:1")]],
    ids=["few", "one", "long ones", "a jitted step"],
)
def test_few_or_large_programs_are_no_loop(calls: list[str]) -> None:
    assert found_in("small_programs", *calls) is None


def test_large_programs_are_none_however_many() -> None:
    calls = [call("layer", 500 * number, 500 * number + 300, "train.py:7") for number in range(30)]
    assert found_in("small_programs", *calls) is None


def test_on_a_device_only_its_idle_time_can_be_saved() -> None:
    busy = "stream 7 | 0 19000 | gemm_fusion | corr=1\nmain | 0 2 | cudaLaunchKernel | corr=1\n"
    assert found_in("small_programs", busy, *eager(24), devices=V100) is None


# -- callbacks


@pytest.mark.parametrize("name", ["debug_callback.1", "pure_callback", "io_callback.12"])
def test_a_step_that_calls_back_into_python(name: str) -> None:
    finding = found_in("host_callbacks", call("train_step", 0, 4000, "net.py:5", operation=name))
    assert finding is not None
    assert finding.what.startswith("The compiled step calls back into Python once, 2 ms")
    assert place(finding) == ("net.py", 5, "train_step")


def test_a_function_of_the_user_with_such_a_name() -> None:
    other = call("train_step", 0, 4000, "net.py:5", operation="debug_callback_of_mine_fusion")
    assert found_in("host_callbacks", other) is None


# -- sizes of products


def product(sizes: str, width: int = 2) -> str:
    shapes = f"product__sizes={sizes} operand__bytes={width} product__flops__from__shapes=8000000000"
    work = f"{shapes} flops__from__shapes=8000000000 bytes__from__shapes=1000000"
    source = "hlo__op=dot.1 hlo__module=jit_train_step source=net.py:9"
    return (
        "main | 10 20 | cudaLaunchKernel | corr=1\n"
        f"stream 7 | 20 19000 | sm80_gemm_fusion | corr=1 {source} {work}\n"
        "main | 30 19010 | cuStreamSynchronize | cat=runtime\n"
    )


@pytest.mark.parametrize(("width", "is_found"), [(8, True), (4, False)])
@pytest.mark.parametrize("devices", [V100, ()])
def test_products_of_8_bytes_are_in_fp64(
    width: int, is_found: bool, devices: tuple[dict[str, Any], ...]
) -> None:
    text = product("64x64x64", width)
    if not devices:  # a thread of XLA runs it
        text = re.sub(r".*cu.*\n", "", text).replace("stream 7", "main").replace("corr=1", "cat=cpu_op")
    finding = found_in("fp64_matmul", text, devices=devices)
    assert (finding is not None) is is_found
    assert finding is None or "leave jax_enable_x64 off" in finding.advice


def test_products_of_sizes_that_tensor_cores_do_not_like() -> None:
    finding = found_in("odd_shapes", product("4096x1000x50257"), devices=V100)
    assert finding is not None
    assert finding.what.startswith(
        "1 16-bit matrix products per step have sizes not divisible by 8. The sizes are 50257;"
    )
    assert place(finding)[:2] == ("net.py", 9)
    assert finding.gain.ms > 0


@pytest.mark.parametrize("drawn", [product("4096x1000x50304"), product("4096x1000x50257", 4)])
def test_suitable_sizes_and_32_bits(drawn: str) -> None:
    assert found_in("odd_shapes", drawn, devices=V100) is None


# -- donation


def programs(could: int, whole: int) -> dict[str, Any]:
    sizes = {"argument_bytes": whole, "donated_bytes": 0, "could_donate_bytes": could}
    return {"programs": {"jit_train_step": sizes, "jit_other": sizes}}


def test_parameters_that_come_back_in_new_memory() -> None:
    step = call("train_step", 0, 4000, "net.py:5")
    finding = found_in("missing_donation", step, properties=programs(40_000_000, 44_000_000))
    assert finding is not None
    assert finding.what.startswith("train_step returns 40 MB of its arguments")
    assert "donate_argnums" in finding.advice
    assert (finding.severity, finding.gain.ms) == ("info", 0)
    assert place(finding) == ("net.py", 5, "train_step")


@pytest.mark.parametrize(("could", "whole"), [(0, 44_000_000), (100_000, 200_000), (2_000_000, 44_000_000)])
def test_donated_or_small_arguments(could: int, whole: int) -> None:
    step = call("train_step", 0, 4000, "net.py:5")
    assert found_in("missing_donation", step, properties=programs(could, whole)) is None


@pytest.mark.parametrize(("updates", "named"), [("", False), ("sub", True)])
def test_weights_are_not_donated_to_their_gradients(updates: str, named: bool) -> None:
    """A gradient has the shape of its weight, which the update still needs."""
    primitives = ("jvp()/dot_general", "transpose(jvp())/dot_general", *updates.split())
    step = "main | 0 4000 | PjitFunction(train_step) | cat=runtime\n" + "".join(
        f"main | {1000 * at} {1000 * at + 900} | fusion | scope=jit(train_step)/{primitive}\n"
        for at, primitive in enumerate(primitives)
    )
    finding = found_in("missing_donation", step, properties=programs(40_000_000, 44_000_000))
    assert (finding is not None) == named


@pytest.mark.parametrize(
    ("functions", "named"),
    [(["main"], False), (["main", "Trainer.train_step", "update"], True), ([], True)],
    ids=["of JAX", "of the user", "unknown"],
)
def test_only_functions_of_the_user_can_donate(functions: list[str], named: bool) -> None:
    """JAX's own, such as jnp.clip, leave the frame of their caller and none of themselves."""
    text = (
        "main | 0 4000 | PjitFunction(train_step) | cat=runtime\n"
        "main | 10 3900 | fusion | scope=jit(train_step)/min\n"
    )
    count = len(functions)
    frames = {
        "parent": range(-1, count - 1),
        "function": Text.of(functions),
        "file": Text.of(["train.py"] * count),
        "line": [5] * count,
    }
    origin = {"first": [0], "scope": Text.of([""]), "frame": [count - 1], "share": [1.0]}
    trace = drawn_trace(STEP + text, framework="jax", properties=programs(40_000_000, 44_000_000))
    fusion = np.where(trace.events.text("name").mask("fusion"), 0, -1)
    trace = trace.with_events(origin=fusion).with_table(Table(ORIGINS, origin))
    findings = apply_rules(RuleContext(annotate(trace.with_table(Table(FRAMES, frames)))), RULES)
    assert ("missing_donation" in {one.rule for one in findings}) == named


@pytest.mark.parametrize("rule", ["small_programs", "host_callbacks", "missing_donation"])
def test_pytorch_has_none_of_them(rule: str) -> None:
    text = STEP + "".join(eager(24)) + call("train_step", 6000, 9000, "n.py:5", "debug_callback.1")
    assert found(rule, text, framework="pytorch", properties=programs(4e7, 4e7)) is None


# -- transposes, copies and conversions


def moving(name: str, length: int) -> list[str]:
    """A step of 20 ms that runs an operation of this name for so many microseconds."""
    return [call("train_step", 0, 2 * length, "net.py:7", operation=name)]


@pytest.mark.parametrize(
    "name", ["input_transpose_fusion.kd", "transpose_copy_fusion.2", "wrapped_convert", "copy.11"]
)
def test_operations_that_only_move_data_dominate(name: str) -> None:
    finding = found_in("copy_fusions", *moving(name, 4000))
    assert finding is not None
    assert finding.what.endswith("4 ms. They compute nothing. See net.py:7 in train_step.")
    assert place(finding)[:2] == ("net.py", 7)
    assert finding.gain.ms == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("name", "length"),
    [("input_transpose_fusion.kd", 1000), ("transpose_add_fusion", 4000), ("fusion.7", 4000)],
    ids=["short", "computes too", "unknown"],
)
def test_short_ones_and_those_that_compute(name: str, length: int) -> None:
    assert found_in("copy_fusions", *moving(name, length)) is None


def scoped(options: str, name: str = "copy.11") -> Finding | None:
    """What is found in a step that moves data for 4 ms, with options of the operation."""
    (step,) = moving(name, 4000)
    return found_in("copy_fusions", step.replace("source=", f"{options} source="))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("scope=jit(train_step)/jvp()/transpose", "Keep one order of dimensions"),
        (
            "scope=jit(train_step)/jvp()/dot_general",
            "XLA inserted them for the order of dimensions of dot_general",
        ),
        ("source=x.py:1", "The profile does not show what asks for most of them"),
    ],
    ids=["asked for", "inserted", "unknown"],
)
def test_the_advice_says_who_asked_for_them(options: str, words: str) -> None:
    finding = scoped(options)
    assert finding is not None
    assert words in finding.advice


def test_a_fusion_that_computes_counts_under_no_name() -> None:
    """XLA for CPUs names a fusion by its results: one computed the gradient of a GELU."""
    work = "flops_from_shapes={} bytes_from_shapes=1310720"
    assert scoped(work.format(1_310_720).replace("_", "__"), "copy_bitcast_fusion.2") is None
    assert scoped("flops__from__shapes=0 bytes__from__shapes=99", "copy_bitcast_fusion.2")
    assert scoped("flops__from__shapes=16 bytes__from__shapes=96", "wrapped_convert")
