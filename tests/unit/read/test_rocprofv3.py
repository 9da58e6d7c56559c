"""JSON of AMD's rocprofv3: kernels, copies and calls, and instructions that the device sampled.

Records are as ROCm/rocprofiler-sdk writes them (source/docs/how-to/using-pc-sampling.rst, and the
schema in using-rocprofv3.rst).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.errors import IngestError
from stepscope.facts.contexts import build_contexts
from stepscope.trace.redact import Words, redacted
from stepscope.trace.trace import Trace

GPU, CPU = 7001, 7000  # handles of agents
CALLS, MARKERS, KERNELS, COPIES = range(4)  # of `strings.buffer_records`
REASON = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_"
STRINGS: dict[str, Any] = {
    "buffer_records": [
        {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["KERNEL_DISPATCH_COMPLETE"]},
        {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_HOST_TO_DEVICE"]},
    ],
    "marker_api": [{"key": 9, "value": "forward"}],
    "pc_sample_instructions": ["s_waitcnt vmcnt(0)", "v_add_f32_e32 v1, v2, v3"],
    "pc_sample_comments": ["/home/me/scale.hip:12 -> /home/me/scale.hip:30", ""],
}


def record(kind: int, operation: int, begin: int, end: int, launch: int, **more: Any) -> dict[str, Any]:
    correlation = {"internal": launch, "external": 0}
    times = {"start_timestamp": 51_040_126_000_000 + begin, "end_timestamp": 51_040_126_000_000 + end}
    return {"size": 64, "kind": kind, "operation": operation, "correlation_id": correlation} | times | more


def kernel(dispatch: int, begin: int, end: int, launch: int) -> dict[str, Any]:
    about = {
        **{"dispatch_id": dispatch, "kernel_id": 3},
        **{"agent_id": {"handle": GPU}, "queue_id": {"handle": 1 << 46}},
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
        "group_segment_size": 512,
    }
    return record(KERNELS, 0, begin, end, launch, thread_id=42, dispatch_info=about, stream_id={"handle": 1})


def sample(dispatch: int, instruction: int, offset: int, **stochastic: Any) -> dict[str, Any]:
    wave = {"pc": {"code_object_id": 1, "code_object_offset": offset}, "exec_mask": (1 << 64) - 1}
    return {"record": {**wave, "dispatch_id": dispatch, **stochastic}, "inst_index": instruction}


def waited(reason: str) -> dict[str, Any]:
    return {"wave_issued": 0, "snapshot": {"stall_reason": REASON + reason, "arb_state_issue_valu": 1}}


ISSUED = {"wave_issued": 1, "snapshot": {"stall_reason": REASON + "OTHER_WAIT"}}
RECORDS: dict[str, Any] = {
    "kernel_dispatch": [kernel(1, 30_000, 90_001, 5), kernel(2, 100_000, 140_000, 6)],
    "hip_api": [
        record(CALLS, 0, 10_000, 12_000, 5, thread_id=42),
        record(CALLS, 0, 14_000, 16_000, 6, thread_id=42),
        record(CALLS, 1, 20_000, 22_000, 7, thread_id=42),
    ],
    "marker_api": [record(MARKERS, 0, 9_000, 17_000, 9, thread_id=42)],
    "memory_copy": [
        record(COPIES, 0, 150_000, 160_000, 7, bytes=4096)
        | {"src_agent_id": {"handle": CPU}, "dst_agent_id": {"handle": GPU}}
    ],
    "hsa_api": [{"end_timestamp": 51_040_126_000_009, "kind": CALLS}, None],  # which do not begin
}
STOCHASTIC = [
    *[sample(1, 0, 0x34F4, **waited("WAITCNT"))] * 6,
    *[sample(1, 1, 0x34FC, **waited("ARBITER_NOT_WIN"))] * 2,
    *[sample(2, 0, 0x34F4, **waited("WAITCNT"))] * 3,
    sample(2, 1, 0x34FC, **ISSUED),
    sample(2, -1, 0, **waited("BARRIER_WAIT")),
    *[sample(8, 0, 0x34F4, **waited("WAITCNT"))] * 4,  # of a kernel that is not in the file
]


def recorded(folder: Path, **records: Any) -> Trace:
    process = {
        "metadata": {"pid": 4711, "init_time": 0, "fini_time": 0},
        "agents": [
            {"id": {"handle": CPU}, "type": 1},
            {"id": {"handle": GPU}, "type": 2, "product_name": "MI300X"},
        ],
        "strings": STRINGS,
        "kernel_symbols": [{"kernel_id": 3, "formatted_kernel_name": "scale(float*)"}],
        "buffer_records": records,
    }
    path = folder / "4711_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}, indent=1))
    return stepscope.open(path, cache=False)


def stalls(trace: Trace) -> list[tuple[str, str, int | None, int]]:
    """Name, file, line and samples of what is below each kernel."""
    tree = build_contexts(trace)
    own = tree.own("stalls").sum
    rows = [(row, int(own[at])) for at, row in enumerate(tree.nodes.rows()) if row["kind"] == "instruction"]
    return [(row["name"], row["file"], row["line"], count) for row, count in rows]


def test_records_are_events(tmp_path: Path) -> None:
    trace = recorded(tmp_path, **RECORDS)
    columns = [trace.events.text("name"), trace.events.text("category"), trace.events["duration_ns"].tolist()]
    assert list(zip(*columns, strict=True)) == [
        ("forward", "annotation", 8000),
        ("hipLaunchKernel", "runtime", 2000),
        ("hipLaunchKernel", "runtime", 2000),
        ("hipMemcpyAsync", "runtime", 2000),
        ("scale(float*)", "kernel", 60_001),
        ("scale(float*)", "kernel", 40_000),
        ("MEMORY_COPY_HOST_TO_DEVICE", "memcpy", 10_000),
    ]
    assert trace["launches"]["delay_ns"].tolist() == [20_000, 86_000, 130_000]
    assert trace.events["bytes"].tolist() == [-1] * 6 + [4096]
    assert [device["name"] for device in trace.metadata.devices] == ["MI300X"]
    assert [(row["code"], row["count"]) for row in trace["warnings"].rows()][:1] == [("unread_record", 2)]
    tree = build_contexts(trace)
    assert (tree.own("blocks").max.max(), tree.own("threads").max.max()) == (8, 2048)


def test_stochastic_samples_are_below_their_kernel(tmp_path: Path) -> None:
    """By dispatch; reasons as AMD names them, but where NVIDIA has a word for the same."""
    trace = recorded(tmp_path, **RECORDS, pc_sample_stochastic=STOCHASTIC)
    wait, add = "s_waitcnt vmcnt(0) +0x34f4", "v_add_f32_e32 v1, v2, v3 +0x34fc"
    assert stalls(trace) == [
        ("waitcnt", "", None, 0),
        (wait, "/home/me/scale.hip", 12, 9),
        ("not_selected", "", None, 0),
        (add, "", None, 2),
        ("selected", "", None, 0),
        (add, "", None, 1),
        ("barrier_wait", "", None, 1),
    ]
    said = {row["code"]: row["count"] for row in trace["warnings"].rows()}
    assert (said["untied_samples"], said["unknown_instructions"]) == (4, 1)
    (finding,) = [one for one in apply_rules(RuleContext(trace), RULES) if one.rule == "stall_reasons"]
    assert finding.what.endswith("By samples: waitcnt 69%, not_selected 15%, selected 8%.")
    assert "memory" in finding.advice


def test_samples_of_host_traps_have_no_reason_and_are_no_finding(tmp_path: Path) -> None:
    trace = recorded(tmp_path, **RECORDS, pc_sample_host_trap=[sample(1, 0, 0x34F4)] * 5)
    assert stalls(trace) == [
        ("reason not recorded", "", None, 0),
        ("s_waitcnt vmcnt(0) +0x34f4", "/home/me/scale.hip", 12, 5),
    ]
    assert not [one for one in apply_rules(RuleContext(trace), RULES) if one.rule == "stall_reasons"]


def test_without_kernels_and_calls_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="record with `--kernel-trace"):
        recorded(tmp_path, pc_sample_stochastic=STOCHASTIC)
    (tmp_path / "cut.json").write_text('{"rocprofiler-sdk-tool": [{"agents": [')
    with pytest.raises(IngestError, match=r"the JSON of rocprofv3 is damaged: .*; record it again"):
        stepscope.open(tmp_path / "cut.json", cache=False)


def test_a_redacted_file_keeps_mnemonics_and_reasons(tmp_path: Path) -> None:
    trace = recorded(tmp_path, **RECORDS, pc_sample_stochastic=STOCHASTIC)
    samples = redacted(trace, Words(b"a key"))["instruction_samples"]
    assert {*samples.text("instruction").compact().values} >= {"s_waitcnt +0x34f4", "v_add_f32_e32 +0x34fc"}
    assert "waitcnt" in samples.text("reason").compact().values
    assert "/home/me/scale.hip" not in samples.text("file").compact().values
