"""What instructions on the device wait for. A library that stands in for CUPTI takes the samples.

It checks and fills the structures of NVIDIA's header, so that what is asked of it and what becomes
of its answers is tested for real. What a real driver does is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from collected import Collected, Context
from oracles.context_tree import checked
from stand_in import build_stand_in

import stepscope
from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.record.contexts.capability_probe import permission_missing
from stepscope.record.contexts.native_build import load

# What a launch leaves in the stand-in: 12 samples, 5 of them in cycles in which nothing was issued.
REASONS = {"long_scoreboard": 7, "imc_miss": 3, "selected": 2}
TRAIN = """
import ctypes, torch, stepscope
cupti = ctypes.CDLL({library!r})
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
FORWARD = b"_ZN2at6native12_GLOBAL__N_17forwardIfEEvPT_"

class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        cupti.fake_launch(FORWARD, 0, 2 * 10**9)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        cupti.fake_launch(b"backward_kernel", 0, 10**9)
        return grad

with stepscope.record_contexts("run.stepscope", stalls=True):
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        Work.apply(x).sum().backward()  # the forward line
"""
# Several collections in one process, each with what the stand-in is to answer.
LAUNCH = """
import ctypes, os, torch, stepscope
cupti = ctypes.CDLL({library!r})
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
for name, answers in {cases!r}.items():
    os.environ.update(answers)
    with stepscope.record_contexts(name + ".stepscope", stalls=True, device=name != "no device"):
        for _ in range(3):
            cupti.fake_launch(b"kernel", 1000, 1700)
    for answer in answers:
        del os.environ[answer]
"""
# A kernel of a module that has a line table, and one that has none.
LINES = """
import ctypes, torch, stepscope
cupti = ctypes.CDLL({library!r})
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
with stepscope.record_contexts("lines.stepscope", stalls=True):
    cupti.fake_launch(b"early", 0, 100)  # so that the device is sampled
    cupti.fake_load({cubin!r}.encode())
    cupti.fake_launch(b"_Z5scalePfi", 100, 2100)
    cupti.fake_launch(b"other", 2100, 2200)
"""
# In /tmp/kernels, with CUDA 13.0: nvcc -lineinfo -cubin -arch=sm_90 lines.cu -o lines.cubin
CUBIN = Path(__file__).parent / "cubin/lines.cubin"
# Where the line changes, as cuptiGetSassToSourceCorrelation of CUPTI 12.9 tells it of each instruction.
SCALE = [(0, 5), (0x10, 6), (0x50, 7), (0x80, 8), (0xC0, "square.cuh:2"), (0xD0, 8), (0xE0, 9)]
TOTAL = [
    *[(0, 10), (0x10, 12), (0x120, 13), (0x130, 12), (0x140, 13), (0x150, 12), (0x160, 13), (0x230, 12)],
    *[(0x250, 13), (0x260, 12), (0x2C0, 13), (0x310, 12), (0x330, 13), (0x340, 12), (0x370, 14)],
    *[(0x3B0, 15), (0x3C0, 3)],
]
CASES = {
    "many instructions": {"FAKE_CUPTI_INSTRUCTIONS": "20"},
    "no permission": {"FAKE_CUPTI_SAMPLING": "35"},
    "old device": {"FAKE_CUPTI_SAMPLING": "27"},
    "no room": {"FAKE_CUPTI_BUFFER": "7"},
    "old library": {"FAKE_CUPTI_VERSION": "21"},
    "other profiler": {"FAKE_CUPTI_SUBSCRIBE": "39"},
    "full": {"FAKE_CUPTI_FULL": "1"},
    "no device": {},
    "again": {},
}
REFUSALS = {
    "no permission": "NVreg_RestrictProfilingToAdminUsers=0",
    "old device": "the device does not support it",
    "no room": "the configuration of samples failed: CUPTI_ERROR_FAKE (7)",
    "old library": "(version 21) whose samples do not include their launch",
    "other profiler": "no device is followed",
    "no device": "no device is followed",
}


def run(script: str, library: Path, folder: Path) -> None:
    """Run a script, which is kept beside what it collects."""
    (folder / "work.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "work.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "STEPSCOPE_CUPTI": str(library)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in("fake_cupti", tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="module")
def folder(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run(TRAIN.format(library=str(library)), library, folder)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Collected:
    return Collected.read(folder / "run.stepscope")


@pytest.fixture(scope="module")
def cases(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Collected]:
    folder = tmp_path_factory.mktemp("cases")
    run(LAUNCH.format(library=str(library), cases=CASES), library, folder)
    return {name: Collected.read(folder / f"{name}.stepscope") for name in CASES}


def samples(contexts: list[Context], metric: str = "stalls") -> int:
    return int(sum(context.metrics.get(metric, {}).get("sum", 0) for context in contexts))


# -- what is collected


def test_samples_stand_below_the_kernel_that_they_are_of(trained: Collected, folder: Path) -> None:
    (kernel,) = trained.named("void at::native::(anonymous namespace)::forward<float>(float*)")
    assert (kernel.parent.kind, kernel.parent.name) == ("runtime", "cudaLaunchKernel")
    assert kernel.metrics["device_ns"]["sum"] == 3 * 2 * 10**9
    script = folder / "work.py"
    lines = script.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "# the forward line" in text)
    assert line in kernel.lines(script)
    assert {child.kind for child in kernel.children} == {"instruction"}
    assert {child.name: samples(list(child.below())) for child in kernel.children} == {
        reason: 3 * count for reason, count in REASONS.items()
    }


def test_backward_kernels_have_theirs_below_the_forward_call(trained: Collected) -> None:
    (kernel,) = trained.named("backward_kernel")
    assert any(context.backward for context in kernel.path)
    assert samples(list(kernel.below())) == 3 * sum(REASONS.values())


def test_below_a_reason_stand_the_instructions(trained: Collected) -> None:
    (kernel,) = trained.named("backward_kernel")
    (reason,) = [child for child in kernel.children if child.name == "long_scoreboard"]
    assert {c.name: samples([c]) for c in reason.children} == {
        "backward_kernel+0x00d0": 18,
        "backward_kernel+0x00e0": 3,
    }
    assert not reason.metrics


def test_samples_of_cycles_in_which_nothing_was_issued_are_counted_again(trained: Collected) -> None:
    assert samples(trained.contexts, "latency_stalls") == 2 * 3 * 5
    assert not [context for context in trained.contexts if "not_issued" in context.name]


def test_no_sample_is_lost_or_counted_twice(trained: Collected) -> None:
    assert samples(trained.contexts) == 2 * 3 * sum(REASONS.values())
    assert samples(trained.of_kind("instruction")) == samples(trained.contexts)
    assert trained.content["dropped"]["samples"] > 0  # as the device told
    assert trained.content["dropped"]["device_records"] == 0
    assert trained.manifest["options"]["stalls"]
    assert not trained.content["notes"]


def test_a_reason_has_few_instructions_and_the_rest_itself(cases: dict[str, Collected]) -> None:
    (reason,) = cases["many instructions"].named("long_scoreboard")
    stalled = [6] * 18 + [1]
    assert [samples([one]) for one in reason.children] == [3 * most for most in stalled[:8]]
    assert samples([reason]) == 3 * sum(stalled[8:])


# -- source lines


def changes(rows: list[tuple[int, str, int]]) -> list[tuple[int, int | str]]:
    """Where the line of a function's instructions changes; in lines.cu, or a file with a line."""
    last = {offset: (file, line) for offset, file, line in rows if line}  # the last row counts
    named = [
        (at, line if Path(f).name == "lines.cu" else f"{Path(f).name}:{line}")
        for at, (f, line) in last.items()
    ]
    return [row for row, before in zip(named, [(0, None), *named], strict=False) if row[1] != before[1]]


def test_a_line_table_is_read_as_the_vendor_reads_it() -> None:
    found = load(torch).lines_of_cubin(CUBIN.read_bytes())
    assert {name: changes(rows) for name, rows in found.items()} == {
        "_Z5scalePfi": SCALE,
        "_Z5totalPfPKfi": TOTAL,
    }
    assert {file for rows in found.values() for _, file, _ in rows} == {
        "/tmp/kernels/lines.cu",
        "/tmp/kernels/square.cuh",
    }


def test_a_damaged_cubin_has_fewer_lines_and_harms_nothing() -> None:
    whole = CUBIN.read_bytes()
    extension = load(torch)
    assert extension.lines_of_cubin(b"no cubin") == {}
    random = Random(0)
    for _ in range(2000):
        damaged = bytearray(whole[: random.choice([len(whole), random.randrange(1, len(whole))])])
        for _ in range(random.randrange(8)):
            damaged[random.randrange(min(len(damaged), 0x900))] = random.randrange(256)
        extension.lines_of_cubin(bytes(damaged))


def test_an_instruction_has_the_line_of_its_source(library: Path, tmp_path: Path) -> None:
    run(LINES.format(library=str(library), cubin=str(CUBIN)), library, tmp_path)
    collected = Collected.read(tmp_path / "lines.stepscope")
    placed = {c.name: (Path(c.file).name, c.line) for c in collected.of_kind("instruction") if "+" in c.name}
    assert placed["scale+0x00d0"] == ("lines.cu", 8)
    assert placed["scale+0x00e0"] == placed["scale+0x00f0"] == ("lines.cu", 9)
    assert {place for name, place in placed.items() if name[:5] != "scale"} == {("", 0)}
    found = apply_rules(RuleContext(stepscope.open(tmp_path / "lines.stepscope")), RULES)
    (stalled,) = [one for one in found if one.rule == "stall_reasons"]
    assert [(Path(p.file).name, p.line) for p in stalled.evidence[:2]] == [("lines.cu", 8), ("lines.cu", 9)]


# -- what stepscope makes of it


def test_the_file_opens_with_reasons_in_every_view(folder: Path) -> None:
    from stepscope.facts.contexts import bottom_up, build_contexts, measures
    from stepscope.facts.contexts.flame import flame

    tree = checked(build_contexts(stepscope.open(folder / "run.stepscope")))
    assert {"stalls", "latency"} <= set(measures(tree))
    drawn = flame(tree, "stalls")
    names = [drawn.strings[code] for code in drawn.boxes.name]
    values = Counter(dict(zip(names, drawn.boxes.value, strict=True)))
    assert drawn.total == 72
    assert (values["imc_miss"], values["backward_kernel+0x00d0"]) == (9, 18)
    assert bottom_up(tree, "stalls").total("stalls") == 72


def test_the_analyzer_names_the_reason_and_the_line(folder: Path) -> None:
    found = apply_rules(RuleContext(stepscope.open(folder / "run.stepscope")), RULES)
    stalled = [finding for finding in found if finding.rule == "stall_reasons"]
    assert len(stalled) == 2
    for finding in stalled:
        assert "stalls mainly on long_scoreboard. By samples: long_scoreboard 58%, imc_miss 25%" in (
            finding.what
        )
        assert "memory" in finding.advice
        assert {Path(place.file).name for place in finding.evidence} == {"work.py"}
        first, second, kernel = finding.evidence
        assert (first.name[-7:], first.count) == ("+0x00d0", 18)
        assert (second.name[-7:], second.count) == ("+0x00e0", 3)
        assert first.ms == pytest.approx(kernel.ms * 18 / 36)


# -- where it cannot be had


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_and_the_rest_works(name: str, cases: dict[str, Collected]) -> None:
    collected = cases[name]
    (note,) = [one for one in collected.content["notes"] if "are not sampled: " in one]
    assert REFUSALS[name] in note
    assert not collected.of_kind("instruction")
    followed = [one.metrics["device_ns"]["count"] for one in collected.named("kernel")]
    assert followed == ([] if REFUSALS[name] == "no device is followed" else [3])


def test_a_library_without_pc_sampling_is_reported(tmp_path: Path) -> None:
    library = build_stand_in("fake_cupti", tmp_path, "-DWITHOUT_SAMPLES")
    run(LAUNCH.format(library=str(library), cases={"without": {}}), library, tmp_path)
    collected = Collected.read(tmp_path / "without.stepscope")
    (note,) = collected.content["notes"]
    assert "a CUPTI library without PC sampling" in note
    assert collected.named("kernel")


def test_a_full_sample_buffer_is_reported_once(cases: dict[str, Collected]) -> None:
    (note,) = cases["full"].content["notes"]
    assert "the device's sample buffer was full" in note


def test_a_process_may_sample_again(cases: dict[str, Collected]) -> None:
    assert samples(cases["again"].contexts) == 3 * sum(REASONS.values())
    assert not cases["again"].content["notes"]


@pytest.mark.parametrize(
    ("parameters", "capabilities", "allowed"),
    [
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", False),
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", True),
        ("RmProfilingAdminOnly: 0\n", "0000000000000000", True),
        (None, "0000000000000000", True),
    ],
)
def test_permission_is_read_from_what_the_driver_tells(
    tmp_path: Path, parameters: str | None, capabilities: str, allowed: bool
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    if parameters:
        (tmp_path / "params").write_text(f"EnableMSI: 1\n{parameters}")
    missing = permission_missing(tmp_path / "params", status)
    assert missing == "" if allowed else "NVreg_RestrictProfilingToAdminUsers=0" in missing
