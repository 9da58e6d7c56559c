"""`stepscope report --ncu`: the command of Nsight Compute for the kernels that take most of a step."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepscope.faces.terminal.commands import stepscope
from stepscope.faces.terminal.ncu import name_pattern, ncu_command

# Two steps with work on a GPU; times in us: name, kind of event, begin, length.
_FILL = "void at::native::fill_kernel<4, at::native::Fill<float> >(int, float*)"
_WORK = (
    (_FILL, "kernel", 100, 50),
    (_FILL, "kernel", 160, 50),
    ("ampere_sgemm_128x64_tn", "kernel", 220, 400),
    ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 700, 200),
    ("ncclDevKernel_AllReduce_Sum_f32", "kernel", 910, 80),
)


def _trace(folder: Path, device: str = "NVIDIA A100-SXM4-40GB") -> str:
    work = [
        {"ph": "X", "pid": 0, "tid": 7, "ts": start + begin, "dur": length, "name": name, "cat": kind}
        | {"args": {"device": 0, "stream": 7}}
        for start in (0, 1000)
        for name, kind, begin, length in _WORK
    ]
    steps = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1000 * step, "dur": 1000, "name": f"ProfilerStep#{step}"}
        | {"cat": "user_annotation"}
        for step in (0, 1)
    ]
    file = folder / "gpu.json"
    file.write_text(
        json.dumps({"traceEvents": steps + work, "deviceProperties": [{"id": 0, "name": device}]})
    )
    return str(file)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(stepscope, ["report", *arguments, "--no-cache"])


def test_kernels_without_copies_and_collectives_hottest_first(tmp_path: Path) -> None:
    done = _run(_trace(tmp_path), "--ncu")
    words = shlex.split(done.stdout)
    pattern = words[words.index("--kernel-name") + 1]
    assert pattern == "regex:ampere_sgemm_128x64_tn|native.*fill_kernel.*Fill.*float"
    assert words[words.index("--launch-count") + 1] == "3"  # of one step
    assert words[-2:] == ["python", "YOUR_SCRIPT.py"]
    assert done.stderr.endswith("! the trace does not name the script: replace YOUR_SCRIPT.py\n")


def test_a_capture_names_its_script_and_the_steps_before_the_first_recorded_one() -> None:
    for script in (["a b/train.py", "--lr", "1"], ["-m", "train", "--lr", "1"]):
        words = ncu_command([], {"command": script, "steps_recorded": [5, 6]})
        assert words[-len(script) - 1 :] == ["python", *script]
        assert words[words.index("--launch-skip") + 1] == "5"
        assert words[words.index("--export") + 1] == "train.hottest"


@pytest.mark.parametrize(
    "written",  # by Kineto, and by Nsight Compute
    [
        "void at::native::(anonymous namespace)::softmax<float, 4, true>(float*)",
        "void at::native::<unnamed>::softmax<float, (int)4, (bool)1>(T1 *)",
    ],
)
def test_a_pattern_matches_how_either_tool_writes_a_name(written: str) -> None:
    pattern = name_pattern("void at::native::(anonymous namespace)::softmax<float, 4, true>(float*)")
    assert re.search(pattern, written)
    assert not re.search(pattern, written.replace("softmax", "relu"))


def test_other_devices_are_refused(tmp_path: Path) -> None:
    done = _run(_trace(tmp_path, "AMD Instinct MI300X"), "--ncu")
    assert done.exit_code == 2
    assert "profiles NVIDIA GPUs, and this step ran on AMD Instinct MI300X" in done.stderr


def test_two_answers_are_refused(tmp_path: Path) -> None:
    assert "--json and --ncu cannot be combined" in _run(_trace(tmp_path), "--ncu", "--json").stderr


@pytest.mark.parametrize(
    ("word", "runs"), [("t.py", True), ("rm\x1b[1A\x1b[2K.py", False), ("\u202et.py", False)]
)
def test_where_ncu_is_installed_the_command_runs_once_the_user_agrees(
    word: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[list[str], Path]] = []
    monkeypatch.setattr("stepscope.faces.terminal.ncu.shutil.which", lambda name: f"/opt/{name}")
    monkeypatch.setattr("stepscope.faces.terminal.ncu.sys", _Terminal())
    monkeypatch.setattr(
        "stepscope.faces.terminal.ncu.subprocess.call", lambda command, cwd: ran.append((command, cwd))
    )
    from stepscope.faces.terminal import ncu

    monkeypatch.setattr(ncu, "hottest_kernels", lambda summary: [])
    monkeypatch.setattr("stepscope.faces.terminal.ncu.click.confirm", lambda *_, **__: True)
    ncu.profile_hottest(_Summary(tmp_path, word))  # type: ignore[arg-type]
    assert [(command[-2:], folder) for command, folder in ran] == [(["python", word], tmp_path)] * runs
    assert not {*"".join(capsys.readouterr())} & {*"\x1b\u202e"}


class _Summary:
    def __init__(self, folder: Path, word: str) -> None:
        self.capture = {"command": [word], "cwd": str(folder)}
        self.world_size = 1


class _Terminal:
    stdin = type("Input", (), {"isatty": staticmethod(lambda: True)})

    @staticmethod
    def exit(code: int) -> None:
        """The process goes on: this is a test."""
