"""`stepscope contexts`, called in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import build_contexts, with_contexts
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

CALLS = [
    ("ProfilerStep#1", "user_annotation", 0, 100),
    ("train.py(7): forward", "python_function", 10, 80),
    ("aten::linear", "cpu_op", 20, 60),
    ("aten::addmm", "cpu_op", 25, 40),
    ("aten::relu", "cpu_op", 82, 3),
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for name, cat, ts, dur in CALLS
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    return str(path)


def call(*arguments: str, width: int = 100) -> tuple[int, str, str]:
    result = CliRunner().invoke(stepscope, ["contexts", *arguments], env={"COLUMNS": str(width)})
    return result.exit_code, result.stdout, result.stderr


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_tree_with_what_is_passed_on_in_one_line(file: str) -> None:
    code, out, _ = call(file)
    assert code == 0
    found = rows(out)
    assert ["all", "›", "main", "›", "step", "◀", "0.10", "100%", "██████████", "0.02", "1"] in found
    assert ["aten::linear", "◀", "0.06", "60%", "██████", "0.02", "1"] in found
    assert ["aten::addmm", "◀", "0.04", "40%", "████", "0.04", "1"] in found


@pytest.mark.parametrize("width", [40, 80, 100, 130, 200])
def test_a_line_is_no_longer_than_the_terminal(file: str, width: int) -> None:
    for arguments in ([file], [file, "--bottom-up"], [file, "--metric", "calls"]):
        code, out, _ = call(*arguments, width=width)
        assert code == 0
        assert all(len(line) <= width for line in out.splitlines())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_numbers_are_never_cut(tmp_path: Path, width: int) -> None:
    calls = [(*call[:2], call[2] * 10**9, call[3] * 10**9) for call in CALLS]
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for name, cat, ts, dur in calls
    ]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(events))
    for arguments in ([], ["--bottom-up"], ["--metric", "calls"]):
        code, out, _ = call(str(path), *arguments, width=width)
        assert code == 0
        assert all(len(line) <= width for line in out.splitlines())
        numbers = [part for line in out.splitlines() for part in line.split() if part[0].isdigit()]
        assert not any("…" in number for number in numbers)
    assert "100,000,000" in call(str(path), width=width)[1]


def test_symbols_are_replaced_where_the_output_has_none(file: str) -> None:
    out = CliRunner(charset="ascii").invoke(stepscope, ["contexts", file]).stdout
    assert out.isascii()
    assert "all > main > step <" in out
    assert "?" not in out


def test_small_nodes_are_told_in_one_line(file: str) -> None:
    out = call(file, "--least", "10")[1]
    assert "aten::relu" not in out
    assert "… 1 more" in out


def test_bottom_up_lists_each_place_with_its_callers(file: str) -> None:
    found = rows(call(file, "--bottom-up")[1])
    at = next(number for number, row in enumerate(found) if row[:1] == ["aten::addmm"])
    assert found[at + 1][0] == "aten::linear"


def test_a_focus_and_what_is_hidden(file: str) -> None:
    assert "aten::relu" not in call(file, "--focus", "addmm")[1]
    assert "forward" not in call(file, "--hide", r"train\.py")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metric", "stalls"], "no metric 'stalls'; choose one of"),
        (["--metric", "cals"], "no metric 'cals'; did you mean calls?"),
        (["--focus", "("], "'(' is not a regular expression"),
        (["--hide", "nothing_like_it"], "matches no name"),
        (["--step", "9"], "has no step 9"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(file: str, arguments: list[str], said: str) -> None:
    code, out, err = call(file, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_json_speedscope_and_folded_go_to_stdout_or_a_file(file: str, tmp_path: Path) -> None:
    assert json.loads(call(file, "--format", "json")[1])["metrics"]["cpu_ns"]["unit"] == "ns"
    profile = json.loads(call(file, "--format", "speedscope")[1])["profiles"][0]
    assert profile["endValue"] == 100_000
    out = tmp_path / "stacks.txt"
    code, said, err = call(file, "--format", "folded", "-o", str(out))
    assert (code, said, err) == (0, "", f"wrote {out}\n")
    assert "main;step;forward (train.py:7);aten::linear;aten::addmm 40000" in out.read_text()


def test_sql_over_the_tree(file: str) -> None:
    sql = """select name, sum from contexts join context_metrics on context = contexts.id
             where metric = 'call_ns' and kind = 'operator' order by sum desc"""
    result = CliRunner().invoke(stepscope, ["query", file, sql, "--format", "csv"])
    assert result.stdout.splitlines() == [
        "name,sum",
        "aten::linear,60000.0",
        "aten::addmm,40000.0",
        "aten::relu,3000.0",
    ]


def test_the_table_goes_to_a_file_too(file: str, tmp_path: Path) -> None:
    out = tmp_path / "tree.txt"
    assert call(file, "-o", str(out))[0] == 0
    assert "aten::addmm" in out.read_text("utf-8")
    assert "\x1b" not in out.read_text("utf-8")


def test_however_deep_a_call_is_its_numbers_are_whole(tmp_path: Path) -> None:
    deep = [(f"train.py({n}): f{n}", "python_function", 20 * n, 2000 - 40 * n) for n in range(40)]
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for name, cat, ts, dur in [*deep, ("aten::mm", "cpu_op", 790, 420)]
    ]
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(events))
    _, out, _ = call(str(path))
    (row,) = [line.split() for line in out.splitlines() if "aten::mm" in line]
    assert [row[0], row[2], row[3], row[-2]] == ["aten::mm", "0.42", "21%", "0.42"]
    assert "Only operators" not in out


def test_names_that_share_a_line_leave_the_numbers_their_room(tmp_path: Path) -> None:
    """Every third frame takes time of its own; those between hand on all they have."""
    names = [f"train.py({100 + n}): a_function_of_a_long_name_{n}" for n in range(40)]
    names[3] = "train.py(103): <module>"
    begins = [20 * (n // 3) + n * 0.001 for n in range(40)]
    events = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 2000 - 2 * ts,
        }
        for name, ts in zip(names, begins, strict=True)
    ]
    path = tmp_path / "chains.json"
    path.write_text(json.dumps([*events, {**events[-1], "cat": "cpu_op", "name": "aten::mm"}]))
    _, out, _ = call(str(path), width=80)
    assert "own ms   count\n" in out  # no column gave way
    assert "  train.py:103 › … › " in out
    rows = [line.split() for line in out.splitlines() if " › " in line]
    assert len(rows) > 5
    assert all(row[-3].endswith("%") for row in rows)


@pytest.mark.parametrize("form", ["json", "speedscope", "folded"])
@pytest.mark.parametrize("cut", [["--depth", "2"], ["--least", "5"], ["--depth=2", "--least=0"]])
def test_what_cuts_the_table_is_refused_of_other_formats_before_anything_is_read(
    form: str, cut: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.facts.load.open", None)
    code, out, err = call("trace.json", "--format", form, *cut)
    assert (code, out) == (2, "")
    assert f"applies to tables only; --format {form} holds all contexts" in " ".join(err.split())
    assert all(one.split("=")[0] in err for one in cut if one.startswith("--"))


def test_a_sample_is_no_call_that_has_a_length_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = annotate(drawn_trace("main | 0 9 | ProfilerStep#0\nmain | 1 8 | train.py(7): step"))
    tree = build_contexts(trace)
    timed = with_contexts(Trace({}), tree)
    spent = tree.own("cpu_ns")
    sampled = with_contexts(Trace({}), replace(tree, metrics={"sampled_real_ns": spent}))
    for trace, heads in ((timed, ["count", "mean", "µs", "max", "µs"]), (sampled, ["samples"])):
        monkeypatch.setattr("stepscope.facts.load.open", lambda *_, found=trace, **__: found)
        code, out, _ = call("run", width=140)
        assert (code, out.splitlines()[3].split()[-len(heads) :]) == (0, heads), out
