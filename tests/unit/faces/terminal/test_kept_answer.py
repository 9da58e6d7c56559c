"""Reports, analyses and lists of what-ifs are made once: the next is shown without the trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope


def event(name: str, start: float, length: float, category: str = "cpu_op") -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}


def write(path: Path, length: float = 60) -> None:
    events = [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        event("aten::mm", 10, length),
        event("ProfilerStep#2", 100, 100, "user_annotation"),
        event("aten::mm", 110, length),
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "trace.json"
    write(path)
    return path


def report(*arguments: str | Path) -> str:
    done = CliRunner().invoke(stepscope, ["report", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("opened the trace again")

    monkeypatch.setattr("stepscope.facts.load.open", refuse)


@pytest.mark.parametrize("options", [(), ("--json",), ("--step", "2"), ("--depth", "1")])
def test_the_second_report_is_the_first(file, options, monkeypatch) -> None:
    first = report(file, *options)
    nothing_opens(monkeypatch)
    assert report(file, *options) == first


def test_other_steps_and_options_are_reports_of_their_own(file) -> None:
    assert report(file, "--json") != report(file, "--json", "--step", "1")


def test_a_file_that_changed_is_reported_anew(file) -> None:
    before = report(file, "--json")
    write(file, 80)
    assert report(file, "--json") != before


def test_the_report_names_the_file_as_it_was_asked_for(file, monkeypatch) -> None:
    report(file)
    monkeypatch.chdir(file.parent)
    assert json.loads(report("trace.json", "--json"))["source"] == "trace.json"


def test_without_the_cache_nothing_is_kept(file, monkeypatch) -> None:
    report(file, "--no-cache")
    assert not (file.parent / "cache").exists()
    report(file)
    nothing_opens(monkeypatch)
    with pytest.raises(AssertionError, match="opened the trace"):
        report(file, "--no-cache")


def test_a_damaged_report_is_made_again(file) -> None:
    first = report(file)
    (kept,) = (file.parent / "cache").glob("*/text")
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert report(file) == first


@pytest.mark.main
def test_a_kept_report_needs_no_numpy(file) -> None:
    report(file)
    code = (
        "import sys; from stepscope.faces.terminal.commands import stepscope;"
        f"stepscope.main(['report', {str(file)!r}], standalone_mode=False);"
        "print({'numpy', 'pyarrow', 'duckdb'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def analyze(*arguments: str | Path) -> str:
    done = CliRunner().invoke(stepscope, ["analyze", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def write_loading(path: Path) -> None:
    """Steps of which two thirds are data loading."""
    events = []
    for start in range(0, 400_000, 100_000):
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events += [
            event(f"ProfilerStep#{start}", start, 100_000, "user_annotation"),
            event(loader, start, 65_000, "user_annotation"),
            event("aten::mm", start + 66_000, 30_000),
        ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


@pytest.mark.parametrize("options", [(), ("--json",), ("--all",)])
def test_the_second_analysis_is_the_first(file, options, monkeypatch) -> None:
    write_loading(file)
    first = analyze(file, *options)
    assert "1 finding" in first or "gain_ms" in first
    nothing_opens(monkeypatch)
    assert analyze(file, *options) == first


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_second_list_of_what_ifs_is_the_first(file, options, monkeypatch) -> None:
    write_loading(file)
    command = ["whatif", str(file), "--all", *options]
    first = CliRunner().invoke(stepscope, command, catch_exceptions=False).output
    assert "dataloader" in first
    nothing_opens(monkeypatch)
    assert CliRunner().invoke(stepscope, command, catch_exceptions=False).output == first


def test_an_analysis_is_made_again_after_a_calibration(file, monkeypatch, tmp_path) -> None:
    """Gains rest on what was measured on this machine."""
    analyze(file)
    (tmp_path / "cache" / f"calibration-{'0' * 16}.json").write_text("{}")
    nothing_opens(monkeypatch)
    with pytest.raises(AssertionError, match="opened the trace again"):
        analyze(file)


def test_an_analysis_by_custom_rules_is_not_kept(file, monkeypatch, tmp_path) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text("RULES = []")
    analyze(file, "--rules", rules)
    nothing_opens(monkeypatch)
    with pytest.raises(AssertionError, match="opened the trace again"):
        analyze(file, "--rules", rules)
