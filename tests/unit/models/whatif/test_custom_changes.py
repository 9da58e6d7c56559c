"""`whatif --changes FILE`: functions of a user's own, and what is wrong with them in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from drawn_steps import graph_of

from stepscope.errors import ChangeError
from stepscope.faces.terminal.commands import stepscope
from stepscope.models.whatif import CHANGES, Change, load_changes, parse_request, predict

STEP = """
    main     |  0  90 | ProfilerStep#0
    main     | 10  12 | cudaLaunchKernel | corr=7
    stream 7 | 20 120 | sgemm            | corr=7
"""
FILE = '''
from stepscope.graph import scale, select

def faster(graph, factor: float = 2.0):
    """Products take less time."""
    return scale(graph, select(graph, name="sgemm"), 1 / factor)

def broken(graph):
    return graph.tasks["no such column"]

def forgetful(graph):
    scale(graph, select(graph, name="sgemm"), 2)

def leaving(graph):
    raise SystemExit("no")

CHANGES = [faster, broken, forgetful, leaving]
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE, "utf-8")
    return path


def test_functions_of_a_file_are_changes_with_parameters(file: Path) -> None:
    changes = {**CHANGES, **load_changes(file)}
    for text, expected in (("faster", 0.090), ("faster:factor=0.5", 0.220)):
        assert predict(graph_of(STEP), [parse_request(text, changes)]).predicted_step_ms == expected
    assert changes["faster"].summary == "Products take less time."
    for words in (["--changes", str(file)], [f"--changes={file}"]):
        listed = CliRunner().invoke(stepscope, ["whatif", "--list", "--json", *words])
        assert [one["name"] for one in json.loads(listed.stdout)] == list(changes)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("broken", "broken, line 9: KeyError: \"tasks has no column 'no such column'"),
        ("forgetful", "forgetful: expected it to return a Graph, found NoneType"),
        ("leaving", "leaving, line 15: SystemExit: no"),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(file: Path, name: str, error: str) -> None:
    with pytest.raises(ChangeError) as caught:
        predict(graph_of(STEP), [parse_request(name, load_changes(file))])
    assert str(caught.value).partition("; choose one of")[0] == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_of_this_name", "cannot load changes: ModuleNotFoundError"),
        ("raise GeneratorExit", "cannot load changes: GeneratorExit"),
        ("CHANGES = 3", "expected a list CHANGES of functions from graph to graph, found int"),
        ("", "expected a list CHANGES of functions from graph to graph, found NoneType"),
        ("CHANGES = [abs]", "of functions from graph to graph, found builtin_function_or_method"),
        ("def amp(graph): ...\nCHANGES = [amp]", "amp is the name of another change"),
        ("CHANGES = [lambda graph: graph, lambda graph: None]", "<lambda> is the name of another change"),
    ],
)
def test_a_file_that_is_none_of_changes_is_refused(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, "utf-8")
    with pytest.raises(ChangeError, match=error):
        load_changes(path, CHANGES)


@pytest.mark.parametrize(
    ("parameter", "given", "value"),
    [
        ("some: str", "layers.*", "layers.*"),
        ("some='*'", "layers.*", "layers.*"),
        ("some: 'int' = 1", "2", 2),
        ("some=True", "no", False),
        ("some", "2", 2.0),
        ("some=0.5, **rest", "2", 2.0),
    ],
)
def test_a_parameter_has_the_type_of_its_annotation_or_default(
    tmp_path: Path, parameter: str, given: str, value: object
) -> None:
    assert parse_request(f"f:some={given}", of_one_parameter(tmp_path, parameter)).values == {"some": value}


@pytest.mark.parametrize(
    ("parameter", "kind"), [("some: str | None = None", "str | None"), ("some=()", "tuple")]
)
def test_a_parameter_of_another_type_is_refused(tmp_path: Path, parameter: str, kind: str) -> None:
    with pytest.raises(ChangeError) as caught:
        parse_request("f:some=x", of_one_parameter(tmp_path, parameter))
    assert str(caught.value).endswith(
        f"expected the type of some to be float, int, bool or str, found {kind}"
    )


def of_one_parameter(folder: Path, parameter: str) -> dict[str, Change]:
    path = folder / "mine.py"
    path.write_text(f"def f(graph, {parameter}):\n    return graph\nCHANGES = [f]", "utf-8")
    return load_changes(path)
