"""`stepscope diff`, called in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope


def write(path: Path, steps: list[int]) -> str:
    """A trace of a CPU: one operator that fills each step but for 10 us."""
    events: list[dict[str, Any]] = []
    start = 0
    for number, length in enumerate(steps):
        for name, cat, at, dur in (
            (f"ProfilerStep#{number}", "user_annotation", start, length),
            ("aten::linear", "cpu_op", start + 5, length - 10),
        ):
            events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur})
        start += length
    path.write_text(json.dumps(events))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {
        "fast": write(tmp_path / "fast.json", [1000, 1010, 990, 1000]),
        "slow": write(tmp_path / "slow.json", [1500, 1515, 1485, 1500]),
        "noisy": write(tmp_path / "noisy.json", [900, 2400, 1000, 1900]),
        "single": write(tmp_path / "single.json", [1500]),
        "even": write(tmp_path / "even.json", [1000, 1010, 990, 1002, 1005, 1650]),
        "likely": write(tmp_path / "likely.json", [1400, 1430, 1380, 1420, 1390, 1410]),
    }


def call(*arguments: str, width: int = 100) -> tuple[int, str, str]:
    result = CliRunner().invoke(stepscope, ["diff", *arguments], env={"COLUMNS": str(width)})
    return result.exit_code, result.stdout, result.stderr


def test_what_changed_and_by_how_much(files: dict[str, str]) -> None:
    code, out, _ = call(files["fast"], files["slow"])
    assert code == 0
    assert "Step        1.00 → 1.50 ms   +50.0%" in out
    assert "▶ B takes 50% more time: " in out
    assert "aten::linear" in out
    assert "Operators are compared by CPU time: at least one side has no device work." in out
    less = call(files["slow"], files["fast"])[1]
    assert "▶ B takes 33% less time: " in less
    assert "−33.3%" in less


def on_device(path: Path, busy: int) -> str:
    """Steps of 1 ms, each with one kernel of so many us."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        start, linked = 1000 * number, {"args": {"correlation": number + 1}}
        events += [
            {"ph": "X", "pid": 1, "tid": tid, "cat": cat, "name": name, "ts": at, "dur": dur, **more}
            for tid, cat, name, at, dur, more in (
                (1, "user_annotation", f"ProfilerStep#{number}", start, 1000, {}),
                (1, "cuda_runtime", "cudaLaunchKernel", start + 5, 5, linked),
                (7, "kernel", "gemm", start + 10, busy, linked),
            )
        ]
    path.write_text(json.dumps(events))
    return str(path)


def test_idle_time_has_the_names_of_the_report(tmp_path: Path) -> None:
    busy, idle = on_device(tmp_path / "busy", 900), on_device(tmp_path / "idle", 100)
    out = call(busy, idle)[1]
    report = CliRunner().invoke(stepscope, ["report", idle]).stdout
    assert "idle, host bound" in out
    assert "idle, host bound" in report
    assert "idle: " not in out


def test_a_difference_that_may_be_chance_is_no_verdict(files: dict[str, str]) -> None:
    assert "time, which is within noise" in call(files["fast"], files["noisy"])[1]
    out = call(files["fast"], files["single"])[1]
    assert "B has only one step, so this may be noise" in " ".join(out.split())


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_line_is_no_longer_than_the_terminal(files: dict[str, str], width: int) -> None:
    out = call(files["fast"], files["slow"], width=width)[1]
    assert all(len(line) <= width for line in out.splitlines())


def test_json_has_the_same_facts(files: dict[str, str]) -> None:
    found = json.loads(call(files["fast"], files["slow"], "--json")[1])
    assert found["step"]["verdict"] == "slower"
    assert found["step"]["before"]["median_ms"] == pytest.approx(1.0)
    assert found["operators"][0]["key"] == ["aten::linear"]
    assert found["before"]["compared"] == "operators on the CPU"


@pytest.mark.parametrize(
    ("sides", "limit", "code", "said"),
    [
        (("fast", "slow"), "10", 1, "failed: step time changed by +50.0% (--fail-above 10)"),
        (("fast", "slow"), "60", 0, "passed: step time changed by +50.0% (--fail-above 60)"),
        (("slow", "fast"), "0", 0, "passed: step time changed by -33.3%"),
        (("fast", "noisy"), "10", 0, "within step-to-step noise; record more steps"),
        (("even", "likely"), "10", 1, "failed: step time changed by +40.0%"),
        (("even", "likely"), "39", 0, "cannot tell: step time changed by +40.0%"),
        (("fast", "single"), "10", 1, "one side has only one step, so this may be noise"),
    ],
)
def test_a_gate(files: dict[str, str], sides: tuple[str, str], limit: str, code: int, said: str) -> None:
    found, _, err = call(files[sides[0]], files[sides[1]], "--fail-above", limit)
    assert (found, said in err) == (code, True)


def test_a_file_that_is_none_is_refused_in_one_line(files: dict[str, str]) -> None:
    code, out, err = call(files["fast"], "nowhere.json")
    assert (code, out) == (2, "")
    assert "nowhere.json" in err
    assert "Traceback" not in err


def sides_with_modules(tmp_path: Path, net: str) -> list[str]:
    """Two traces with a linear layer in a net."""
    sides = []
    for length in (1000, 1500):
        frames = (
            ("ProfilerStep#0", "user_annotation", 0, length),
            (f"nn.Module: {net}_0", "python_function", 1, length - 2),
            ("nn.Module: Linear_0", "python_function", 2, length - 4),
            ("aten::linear", "cpu_op", 3, length - 6),
        )
        events = [
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur}
            for name, cat, at, dur in frames
        ]
        sides.append(tmp_path / f"{length}.json")
        sides[-1].write_text(json.dumps(events))
    return [*map(str, sides)]


def test_changes_of_modules_that_contain_each_other_are_not_added_up(tmp_path: Path) -> None:
    text = call(*sides_with_modules(tmp_path, "Net"), "--rows", "0")[1]
    rest = [line.split() for line in text.splitlines() if "more" in line.split()]
    assert ["…", "2", "more"] in rest  # Net and the Linear in it
    assert ["…", "1", "more", "+0.50"] in rest  # the operator


def test_the_end_of_a_modules_path_is_shown(tmp_path: Path) -> None:
    assert "Net_0.Linear_0 " in call(*sides_with_modules(tmp_path, "Net" * 20))[1]


def test_a_stage_that_hardly_counts_is_not_named_as_what_changed(tmp_path: Path) -> None:
    """Zeroing takes twice as long, 3 us more; the step varies by hundreds."""
    sides = []
    for name, zeroing, lengths in (
        ("before", 3, [900, 1400, 1000, 1300]),
        ("after", 6, [950, 1500, 1050, 1350]),
    ):
        path = tmp_path / f"{name}.json"
        events = json.loads(Path(write(path, lengths)).read_text())
        starts = [one["ts"] for one in events if one["name"].startswith("Profiler")]
        events = [one for one in events if one["name"].startswith("Profiler")] + [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "Optimizer.zero_grad#SGD.zero_grad",
                "pid": 1,
                "tid": 1,
                "ts": start + 20,
                "dur": zeroing,
            }
            for start in starts
        ]
        path.write_text(json.dumps(events))
        sides.append(str(path))
    out = " ".join(call(*sides)[1].split())
    assert "▶ B takes 4.3% more time, which is within noise." in out
