"""The `stepscope` command, called in this process; test_start.py starts it in its own."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stepscope.base.unfinished_files import unfinished
from stepscope.errors import StepscopeError
from stepscope.faces.terminal.commands import COMMANDS, stepscope
from stepscope.faces.terminal.run import RunCommand, run, watch
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat
from stepscope.trace.trace import Metadata, Trace
from stepscope.version import __version__

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": i, "dur": 1}
    for i, name in enumerate(["mm", "add", "Größe"])
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(EVENTS))
    return str(path)


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(stepscope, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_the_commands_by_question_without_loading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.faces.terminal.commands.import_module", None)
    code, out, _ = call("--help")
    assert code == 0
    lines = out.partition("Record\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [*COMMANDS]


def test_the_version() -> None:
    assert call("--version")[:2] == (0, f"stepscope, version {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_the_name_it_is_listed_by(name: str) -> None:
    command = stepscope.get_command(click.Context(stepscope), name)
    assert command is not None
    assert command.name == name


def test_a_trace_without_a_command_is_reported(file: str) -> None:
    assert call(file, "--json") == call("report", file, "--json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["repot", "x.json"], "no command 'repot'; did you mean report?"),
        (["train.py", "--lr", "1"], "to record it: stepscope run train.py --lr 1"),
        (["nothing"], "'nothing' is neither a command nor a file"),
    ],
)
def test_what_is_no_command_gets_a_hint(words: list[str], message: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("command", ["query FILE 'select 1'", "contexts FILE", "cache"])
def test_json_is_an_option_everywhere(command: str, file: str) -> None:
    code, out, _ = call(*shlex.split(command.replace("FILE", file)), "--json")
    assert code == 0
    json.loads(out)


def test_query_as_a_table(file: str) -> None:
    sql = "select name, parent, start_ns, 0.5 as half from events"
    assert call("query", file, sql) == (
        0,
        "name   parent  start_ns  half\n"
        "-----  ------  --------  ----\n"
        "mm       null         0   0.5\n"
        "add      null      1000   0.5\n"
        "Größe    null      2000   0.5\n",
        "",
    )


def test_query_as_json(file: str) -> None:
    sql = "select name, parent, sum(duration_ns) as ns, 'nan'::double as x from events group by all"
    code, out, _ = call("query", file, sql + " order by ns, name limit 2", "--format", "json")
    assert code == 0
    assert json.loads(out) == [
        {"name": "Größe", "parent": None, "ns": 1000, "x": None},
        {"name": "add", "parent": None, "ns": 1000, "x": None},
    ]


def test_query_as_csv(file: str) -> None:
    sql = "select 'a,\"b\"' as text, null as nothing, 1 as one"
    code, out, _ = call("query", file, sql, "--format", "csv")
    assert (code, out) == (0, 'text,nothing,one\n"a,""b""",,1\n')


def test_a_row_of_a_query_is_one_line_whatever_its_names_hold(file: str) -> None:
    assert call("query", file, "select 'a' || chr(10) || 'b' as name")[1] == "name\n----\na b\n"


def test_query_without_rows(file: str) -> None:
    sql = "select name from events where false"
    assert call("query", file, sql, "--format", "json")[1] == "[\n]\n"
    assert call("query", file, sql, "--format", "csv")[1] == "name\n"
    assert call("query", file, sql)[1] == "name\n----\n"


def test_long_text_is_cut_in_a_table_alone(file: str) -> None:
    sql = "select repeat('x', 500) as long"
    assert call("query", file, sql)[1].splitlines()[2] == "x" * 79 + "…"
    assert call("query", file, sql, "--format", "csv")[1].splitlines()[1] == "x" * 500


def test_calibrate_refuses_a_file_without_steps(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('[{"ph": "i", "name": "mark", "ts": 1, "pid": 1, "tid": 1}]')
    code, out, err = call("calibrate", str(tmp_path / "none.json"))
    assert (code, out) == (2, "")
    assert "none.json: expected at least one recorded step, found none" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.json", "select 1"], "nope.json: no such file or folder"),
        (["FILE", "drop table events"], "expected one reading statement"),
        (["FILE", "select nam from events"], "no column 'nam'; did you mean name?"),
        (["FILE", "select 1", "--model", "nope"], "nope: cannot read the model tree (--model)"),
        (["FILE"], "Missing argument 'SQL'"),
    ],
)
def test_bad_use_is_one_clear_message_and_code_2(arguments: list[str], message: str, file: str) -> None:
    code, out, err = call("query", *(file if part == "FILE" else part for part in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["report", ""],
        ["query", "", "select 1"],
        ["contexts", ""],
        ["analyze", ""],
        ["whatif", ""],
        ["calibrate", ""],
        ["view", ""],
        ["view", "FILE", ""],
        ["run", ""],
        ["diff", "FILE", ""],
        ["diff", "", "FILE"],
        ["batch", ""],
        ["verify", "amp", ""],
        ["report", "FILE", "--svg", ""],
        ["report", "FILE", "--model", ""],
        ["contexts", "FILE", "-o", ""],
        ["run", "-o", "", "FILE"],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_folder_that_one_stands_in(
    words: list[str], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.facts.load.open", None)  # nothing is read
    code, out, err = call(*(file if word == "FILE" else word for word in words))
    assert (code, out) == (2, "")
    assert "the path is empty" in err


def test_no_cache_keeps_nothing(file: str, cache_folder: Path) -> None:
    assert call("query", file, "select 1", "--no-cache")[0] == 0
    assert list(cache_folder.iterdir()) == []


def test_what_is_kept_is_shown_and_cleared_by_kind(
    file: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPSCOPE_BUILDS", raising=False)
    call("query", file, "select 1")
    calibration = cache_folder / f"calibration-{0:016x}.json"
    calibration.write_text("{}")
    unfinished(calibration).write_text("{")  # left by a process that was killed
    collector = cache_folder / "native" / f"{0:016x}"
    collector.mkdir(parents=True)
    (collector / "_contexts.so").write_bytes(b"x" * 1_500_000)
    (cache_folder / "mine.txt").write_text("not stepscope's")
    assert [line.split()[:4] for line in call("cache")[1].splitlines()] == [
        ["traces", "1,", "0.0", "MB"],
        ["calibrations", "2,", "0.0", "MB"],
        ["collectors", "1,", "1.5", "MB"],
    ]
    assert call("cache", "calibrations", "--clear")[1].startswith("calibrations  2 deleted, 0.0 MB")
    assert [line.split()[1] for line in call("cache")[1].splitlines()] == ["1,", "0,", "1,"]
    assert call("cache", "--clear")[0] == 0
    kept = [path for path in cache_folder.rglob("*") if path.is_file()]
    assert kept == [cache_folder / "mine.txt"]


def test_commands_that_read_write_to_the_cache_alone(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither beside the file, nor into the home, the working or the temporary folder."""
    for name in ("home", "working", "temporary"):
        (tmp_path / name).mkdir()
    file = tmp_path / "working" / "job.json"
    file.write_bytes((Path(__file__).parents[3] / "fuzz/corpus/commands/job.json").read_bytes())
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before = sorted(tmp_path.rglob("*"))
    commands = [*("report", "analyze", "whatif", "contexts", "memory", "explain", "ranks"), "diff", "query"]
    more = {"diff": [file.name], "query": ["select count(*) from events"]}
    done = {name: call(name, file.name, *more.get(name, []))[0] for name in commands}
    assert done == dict.fromkeys(commands, 0)
    assert sorted(tmp_path.rglob("*")) == before
    assert list(cache_folder.iterdir())


def test_a_cache_that_is_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", "off")
    assert call("cache", "traces", "calibrations")[1].count("off ($STEPSCOPE_CACHE)") == 2
    assert call("cache", "everything")[0] == 2


def test_what_cannot_be_cleared_is_said(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    call("query", file, "select 1")
    monkeypatch.setattr("stepscope.trace.cache_folder.remove", refuse)
    code, _, err = call("cache", "--clear")
    assert (code, "Permission denied" in err) == (2, True)


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.facts.load.open", interrupt)
    assert call("query", file, "select 1")[0] == 130


@pytest.mark.parametrize(
    "words",
    [["report", "--svg"], ["report", "--html"], ["contexts", "-o"], ["contexts", "--format", "json", "-o"]],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(
    words: list[str], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.facts.load.open", None)  # nothing is read
    code, out, err = call(*words, "/no/such/folder/out", file)
    assert (code, out) == (2, "")
    assert "cannot write /no/such/folder/out: the folder /no/such/folder does not exist" in err


@pytest.mark.parametrize("words", [["report", "--svg"], ["contexts", "-o"]])
def test_what_is_no_file_is_written_to_and_not_replaced(words: list[str], file: str, tmp_path: Path) -> None:
    """A link stays a link, and a pipe a pipe."""
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_text("old")
    link.symlink_to(real)
    os.mkfifo(pipe)
    with pipe.open("r+b", buffering=0) as reader:
        os.set_blocking(reader.fileno(), False)
        assert call(*words, str(link), file)[0] == call(*words, str(pipe), file)[0] == 0
        assert reader.read(1 << 20) == real.read_bytes() != b"old"
    assert link.is_symlink()
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("words", "option"), [(["report", "--depth", "0"], "--depth"), (["diff", "--rows", "-1", "x"], "--rows")]
)
def test_numbers_that_mean_nothing_are_refused(words: list[str], option: str, file: str) -> None:
    code, _, err = call(*words, file)
    assert (code, f"Invalid value for '{option}'" in err) == (2, True)


@pytest.mark.parametrize("words", [["report"], ["whatif"], ["analyze"], ["diff"]])
def test_a_rank_that_failed_before_its_first_step_leaves_the_others_to_go_on_with(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "main | 0 50 | ProfilerStep#0\nmain | 5 40 | aten::mm"
    failed = Trace({}, Metadata(ranks=(0,), source="job"))
    trained = annotate(drawn_trace(text, ranks=(1,), source="job"))
    job = concat([failed, trained])
    monkeypatch.setattr("stepscope.facts.load.open", lambda *_, **__: job)
    code, out, err = call(*words, "job", *(["job"] if words == ["diff"] else []))
    assert (code, "Error" in err) == (0, False)
    assert "! no recorded step in job: rank 0" in err
    assert out
    code, _, err = call("report", "job", "--rank", "0")
    assert (code, "there is no rank 0; the trace has 1" in err) == (2, True)


def test_what_the_system_refuses_is_one_line_and_code_2(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr("stepscope.facts.load.open", full)
    assert call("report", file) == (2, "", "Error: /tmp/x: No space left on device\n")


def test_query_gives_json_that_every_reader_takes(file: str) -> None:
    sql = "select 'inf'::double as x, [1.0, 'nan'::double] as list, date '2020-02-01' as day"
    rows = json.loads(call("query", file, sql, "--format", "json")[1])
    assert rows == [{"x": None, "list": [1.0, None], "day": "2020-02-01"}]


def test_an_object_cannot_have_two_columns_of_one_name(file: str) -> None:
    code, out, err = call("query", file, "select 1 as a, 2 as a", "--format", "json")
    assert (code, out, "found a twice; give them names with AS" in err) == (2, "", True)


def test_two_answers_at_once_are_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr("stepscope.facts.load.open", None)
    code, _, err = call("report", file, "--json", "--svg", "out.svg")
    assert (code, "--json and --svg cannot be combined" in err) == (2, True)
    code, _, err = call("whatif", file, "--all", "amp")
    assert (code, "--all tries every change on its own" in err) == (2, True)


def test_the_changes_are_listed_without_a_file() -> None:
    code, out, _ = call("whatif", "--list")
    first = "Compute\n  amp:dtype=…,estimate=…\n      Automatic mixed precision"
    assert (code, out.startswith(first)) == (0, True)
    listed = json.loads(call("whatif", "--json", "--list")[1])
    assert listed[0]["name"] == "amp"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["diff", "--fail-above", "nan", "a", "b"], "expected a number, found 'nan'"),
        (["contexts", "--least", "nan", "a"], "expected a number, found 'nan'"),
        (["batch", "--timeout", "0", "a.py"], "0.0 is not in the range x>0"),
        (["batch", "--timeout", "inf", "a.py"], "expected a number, found 'inf'"),
        (["batch", "--at", "2²", "a.py"], "expected batch sizes as 16,32,64, found '2²'"),
    ],
)
def test_what_is_no_number_is_refused(words: list[str], message: str) -> None:
    code, _, err = call(*words)
    assert (code, message in err) == (2, True), err


SCRIPT = """
parser.add_argument("--points")
parser.add_argument("--warm_up")
"""


@pytest.mark.parametrize("words", [["run"], ["batch"], ["verify", "amp"]])
def test_a_recording_where_a_script_is_expected(words: list[str]) -> None:
    code, out, err = call(*words, "train.stepscope")
    assert (code, out) == (2, "")
    assert "not a script; to open it: stepscope report train.stepscope" in err


@pytest.mark.parametrize("words", [["batch"], ["verify", "amp"]])
def test_options_after_a_script_that_reads_arguments_go_to_it_with_a_warning(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import argparse\n" + SCRIPT)
    monkeypatch.setattr("stepscope.faces.terminal.batch.open_entry", stopped)
    monkeypatch.setattr("stepscope.faces.terminal.verify.verify_change", stopped)
    after = ["--points=3", "--json", "--lr", "1", "entry", "--json"]
    code, _, err = call(*words, "train.py", *after)
    assert (code, err) == (
        2,
        "! --json comes after train.py, so the script gets it; "
        "put stepscope's options before the script\nError: stopped\n",
    )


def test_an_option_that_a_recorded_script_does_not_know_may_be_stepscope_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"import argparse\n{SCRIPT}")
    monkeypatch.setattr("stepscope.faces.terminal.run.run_program", ended_by_argparse)
    for words in ("run train.py --lr 1 --steps=3", "watch train.py --steps=3 -o x"):
        with pytest.raises(SystemExit):
            RunCommand.main(run if words.startswith("run") else watch, words.split()[1:])
    assert [line for line in capsys.readouterr().err.splitlines() if "before" in line] == [
        "stepscope: put --steps before train.py if it is stepscope's",
        "stepscope: put -o before train.py if it is stepscope's",
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--native --sample 9", "--native, --sample only work with --contexts"),
        ("--contexts --steps 2 --stack", "--steps, --stack cannot be combined with --contexts"),
        ("--contexts --no-shapes", "--shapes cannot be combined with --contexts"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(5)")
    code, _, said = call("run", *words.split(), str(tmp_path / "train.py"))
    assert (code, said.splitlines()[-1]) == (2, f"Error: {error}, which collects the whole run")


def ended_by_argparse(*_: object) -> None:
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("words", "ours", "script"),
    [
        # Anywhere before the script, also between the change and the script.
        ("verify --json amp train.py --json", {"as_json": True}, ("--json",)),
        ("verify amp --rounds 7 --json train.py x", {"as_json": True, "rounds": 7}, ("x",)),
        ("verify amp train.py -- --json", {"as_json": False}, ("--", "--json")),
        ("batch --at=8 train.py --lr 1", {"at": (8,), "as_json": False}, ("--lr", "1")),
        # What follows a script is the script's, whatever it reads.
        ("batch plain.py --json extra", {"as_json": False}, ("--json", "extra")),
        ("run --steps 2 plain.py --warmup 3", {"steps": 2, "warmup": 5}, ("--warmup", "3")),
    ],
)
def test_which_options_are_stepscope_s(
    words: str,
    ours: dict[str, object],
    script: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys\nprint(sys.argv)")
    Path("plain.py").write_text("print(1)")
    name, *rest = shlex.split(words)
    command = stepscope.get_command(click.Context(stepscope), name)
    assert command is not None
    found = command.make_context(name, rest).params
    assert {key: found[key] for key in ours} == ours
    assert found["arguments"] == script


def stopped(*_: object, **__: object) -> None:
    raise StepscopeError("stopped")


def test_a_report_ends_with_what_to_ask_next(tmp_path: Path) -> None:
    path = tmp_path / "my run.json"
    path.write_text(json.dumps(EVENTS))
    code, out, _ = call("report", str(path))
    assert code == 0
    assert out.splitlines()[-1] == f"For causes and fixes: stepscope analyze '{path}'"


@pytest.mark.parametrize("command", ["report", "analyze", "whatif"])
def test_where_no_steps_are_known_each_command_says_so(command: str, tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    event = {"ph": "X", "cat": "Node", "name": "MatMul_kernel_time", "pid": 7, "tid": 7}
    path.write_text(json.dumps([{**event, "ts": 10 * at, "dur": 8} for at in range(20)]))
    code, out, err = call(command, str(path))
    assert code == 0
    assert "the whole trace is one step" in out + err
