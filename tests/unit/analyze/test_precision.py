"""What keeps findings right: noise, first-use costs, options that exist, gains within costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from drawn_findings import A100, findings, found
from msgspec.structs import replace

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.analyze.analysis import group_findings
from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace


def steps(count: int, inside: str, length: int = 1000) -> str:
    """Steps with the same events; `{name}` in a line of `inside` is not replaced, times are."""
    lines = []
    for step in range(count):
        shift = step * length
        lines.append(f"main | {shift} {shift + length} | ProfilerStep#{step}")
        for line in inside.strip().splitlines():
            track, times, *rest = (part.strip() for part in line.split("|"))
            begin, end = (int(time) + shift for time in times.split())
            rest = [
                re.sub(r"corr=(\d+)", lambda m: f"corr={int(m[1]) + 100 * step}", part)  # noqa: B023
                for part in rest
            ]
            lines.append(" | ".join((track, f"{begin} {end}", *rest)))
    return "\n".join(lines)


COMPUTING = """
    main     | 10 12  | aten::mm
    main     | 10 12  | cudaLaunchKernel | corr=1
    stream 7 | 20 980 | ampere_fp16_s16816gemm | corr=1
    main     | 30 985 | cudaStreamSynchronize
"""
ODD = COMPUTING.replace("aten::mm", "aten::frobnicate")
ON_CPU = "main | 10 900 | aten::mm"


def test_an_operator_that_lost_its_core_once_is_no_finding() -> None:
    text = steps(4, ON_CPU) + "\nmain | 4000 25000 | ProfilerStep#4\nmain | 4100 24100 | aten::sqrt"
    assert findings(text + "\nmain | 24110 24900 | aten::mm") == []


def test_the_same_in_every_step_is_one() -> None:
    finding = found("hotspot", steps(4, ON_CPU + "\nmain | 1000 21000 | aten::sqrt", 22_000))
    assert finding is not None
    assert finding.severity == "critical"


LOADING_KERNELS = """
    main     | 2010 2012 | aten::mm
    main     | 2020 132020 | cuModuleLoadData | cat=runtime
    main     | 132030 132040 | aten::erfinv
    main     | 132031 132039 | cudaLaunchKernel | corr=900
    stream 7 | 132042 132052 | erfinv_kernel | corr=900
"""


def test_loading_of_kernels_is_named_and_no_other_finding_counts_it() -> None:
    text = steps(2, COMPUTING) + "\nmain | 2000 133000 | ProfilerStep#2" + LOADING_KERNELS
    text += "stream 7 | 132060 132990 | ampere_fp16_s16816gemm | corr=901\n"
    text += "main | 132045 132046 | cudaLaunchKernel | corr=901"
    named = [one for one in findings(text, devices=A100) if one.rule == "first_use"]
    assert len(named) == 1
    assert (named[0].severity, named[0].gain.ms) == ("info", 0)
    assert "130 ms of the recorded steps" in named[0].what
    others = [one for one in findings(text, devices=A100) if one.rule != "first_use"]
    assert all(one.gain.ms < 1 for one in others)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("AdamW", "fused=True"),
        ("SGD", "fused=True"),
        ("RMSprop", "foreach=True"),
        ("Adadelta", "foreach=True"),
        ("Lion", "torch.compile"),
    ],
)
def test_only_options_that_the_optimizer_takes_are_advised(name: str, advice: str) -> None:
    loop = "\n".join(
        f"main | {at} {at + 15} | aten::mul_\n"
        f"main | {at + 2} {at + 12} | cudaLaunchKernel | corr={at}\n"
        f"stream 7 | {at + 16} {at + 19} | vectorized_elementwise_kernel | corr={at}"
        for at in range(110, 910, 20)
    )
    text = f"main | 0 1000 | ProfilerStep#0\nmain | 100 950 | Optimizer.step#{name}.step\n{loop}"
    finding = found("optimizer_loop", text, devices=A100)
    assert finding is not None
    assert advice in finding.advice
    if advice != "fused=True":
        assert f"{name}(..., fused=True)" not in finding.advice


def test_on_a_cpu_nothing_is_advised_for_a_class_without_a_fused_form() -> None:
    loop = "\n".join(f"main | {at} {at + 15} | aten::mul_" for at in range(110, 910, 20))
    text = f"main | 0 1000 | ProfilerStep#0\nmain | 100 950 | Optimizer.step#{{}}.step\n{loop}"
    assert found("optimizer_loop", text.format("Adadelta")) is None
    assert found("optimizer_loop", text.format("AdamW")) is not None


def test_what_compilers_append_to_a_name_is_no_copy() -> None:
    text = ODD.replace("ampere_fp16_s16816gemm", "my_kernel_[clone .kd]")
    finding = found("hotspot", steps(3, text), devices=A100)
    assert finding is not None
    assert "copies" not in finding.advice


def test_a_gain_never_exceeds_what_the_thing_costs() -> None:
    finding = found("hotspot", steps(3, ODD.replace("ampere_fp16_s16816gemm", "odd_kernel")))
    assert finding is not None
    assert finding.gain.ms <= 0.5 * 0.96 + 0.001


SLEEPING = """
    main     | 10 5900 | train.py(9): main
    main     | 20 5020 | <built-in function sleep> | cat=python
    main     | 5030 5035 | aten::linear | Input_Dims=[[4,512],[512,512]]
    main     | 5031 5034 | cudaLaunchKernel | corr=1
    stream 7 | 5040 5940 | ampere_fp16_s16816gemm | corr=1
"""


def test_a_sleep_is_named_and_a_larger_batch_is_not_advised() -> None:
    text = steps(4, SLEEPING, 6000)
    stall = found("python_stall", text, devices=A100)
    assert stall is not None
    assert "<built-in function sleep>, called by train.py:9 in main" in stall.what
    assert stall.advice == "Remove the sleep from the loop."
    assert found("small_batch", text, devices=A100) is None


def test_idle_time_is_always_explained() -> None:
    """Nothing was recorded in the gap, so that no specific rule applies."""
    text = steps(
        3,
        """
        main     | 10 12   | aten::mm
        main     | 10 12   | cudaLaunchKernel | corr=1
        stream 7 | 20 300  | ampere_fp16_s16816gemm | corr=1
        main     | 30 60   | cudaEventCreate
        main     | 900 905 | cudaLaunchKernel | corr=2
        stream 7 | 910 990 | ampere_fp16_s16816gemm | corr=2
    """,
    )
    context = RuleContext(annotate(drawn_trace(text, devices=A100)))
    bound_by = context.measures.summary.verdict.bound_by
    explaining = {rule.name for rule in RULES if bound_by in rule.explains or rule.fallback}
    assert bound_by == "host"
    assert {one.rule for one in apply_rules(context, RULES)} & explaining


def test_findings_of_one_cause_are_one_group_and_fixes_are_simulated_together() -> None:
    text = steps(
        3,
        """
        main     | 10 400  | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     | 410 412 | aten::sort
        main     | 410 412 | cudaLaunchKernel | corr=1
        stream 7 | 420 900 | radixSortKVInPlace | corr=1
        main     | 414 985 | aten::item
        main     | 415 984 | cudaStreamSynchronize
    """,
    )
    trace = annotate(drawn_trace(text, devices=A100, capture={"cpus_usable": 2, "loaders": [{"workers": 8}]}))
    context = RuleContext(trace)
    groups = group_findings(apply_rules(context, RULES))
    causes = [group.main.cause for group in groups]
    assert len(set(causes)) == len(causes)
    data = next(group for group in groups if group.main.cause == "input")
    assert {data.main.rule, *(one.rule for one in data.related)} == {"input_bound", "too_many_workers"}
    gains = [group.main.gain for group in groups]
    together = context.gains.combined(gains)
    assert together is not None
    assert together.ms >= max(gain.ms for gain in gains) - 1e-6
    assert together.ms <= context.measures.step_ms
    doubted = context.gains.combined([replace(gain, ms=gain.ms / 8) for gain in gains])
    assert doubted is not None
    assert 0 < doubted.ms <= sum(gain.ms for gain in gains if gain.edit is not None) / 8 < together.ms


@pytest.mark.parametrize(
    ("frame", "advice"),
    [
        ("transformers/trainer.py(2000): _inner_training_loop", "dataloader_num_workers"),
        ("timm/data/loader.py(30): __iter__", "--workers"),
        ("train.py(3): main", "DataLoader(num_workers"),
    ],
)
def test_advice_names_the_option_of_the_library(frame: str, advice: str) -> None:
    loading = "main | 10 800 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    finding = found("input_bound", steps(3, f"main | 5 990 | {frame}\n{loading}\nmain | 810 980 | aten::mm"))
    assert finding is not None
    assert advice in finding.advice


def test_the_device_can_be_named(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 50,
            "name": "ProfilerStep#0",
            "cat": "user_annotation",
        },
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": 10,
            "dur": 5,
            "name": "aten::mm",
            "cat": "cpu_op",
            "args": {"Input Dims": [[64, 1024], [1024, 1024]], "Input type": ["c10::Half", "c10::Half"]},
        },
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": 11,
            "dur": 2,
            "name": "cudaLaunchKernel",
            "cat": "cuda_runtime",
            "args": {"correlation": 1},
        },
        {
            "ph": "X",
            "pid": 0,
            "tid": 7,
            "ts": 20,
            "dur": 970,
            "name": "ampere_fp16_s16816gemm",
            "cat": "kernel",
            "args": {"correlation": 1, "device": 0, "stream": 7},
        },
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    run = CliRunner()
    assert "low_utilization" not in run.invoke(stepscope, ["analyze", str(file)]).output
    named = run.invoke(stepscope, ["analyze", str(file), "--device", "H100"])
    assert "low_utilization" in named.output
    unknown = run.invoke(stepscope, ["analyze", str(file), "--device", "abacus"])
    assert unknown.exit_code == 2
    assert "unknown device 'abacus'" in unknown.output


@pytest.mark.parametrize(("us", "advises_workers"), [(300, False), (700, True)])
def test_workers_are_not_advised_for_batches_that_take_longer_to_receive(
    us: int, advises_workers: bool
) -> None:
    loading = f"main | 10 {10 + us} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    finding = found("input_bound", steps(3, f"{loading}\nmain | 810 980 | aten::mm"))
    assert finding is not None
    assert ("num_workers=…" in finding.advice) == advises_workers
    assert ("BatchSampler" in finding.advice) != advises_workers
