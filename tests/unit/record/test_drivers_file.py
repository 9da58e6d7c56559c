"""The file that names functions of other devices' libraries (docs/reference/shim.md)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.errors import CaptureError
from stepscope.faces.terminal.commands import stepscope
from stepscope.record.contexts import read_drivers

if sys.version_info < (3, 11):
    pytest.skip("no reader of TOML before Python 3.11", allow_module_level=True)

REFERENCE = Path(__file__).parents[3] / "docs/reference/shim.md"
WRONG = {
    "": "names 0 functions, expected 1 to 256",
    "[lib": "Expected ']'",
    'lib = "a"': "expected a table for lib, found 'a'",
    "[lib]\nf = 3": "expected a table for lib: f, found 3",
    '[lib]\nf = "jump"': "lib: f has call = 'jump', expected one of launch, copy",
    "[lib]\nf = {stream = 1}": "lib: f has call = None",
    '[lib]\nf = {call = "copy", bytes = 0}': "argument 'bytes' is 0, expected its position, 1 to 38",
    '[lib]\nf = {call = "copy", bytes = [1, "f32"]}': "argument 'bytes' is [1, 'f32']",
    '[lib]\nf = {call = "copy", "a\\"b" = 1}': "argument 'a\"b' is 1",
    "[lib]\n" + "".join(f'f{n} = "copy"\n' for n in range(257)): "names 257 functions",
}


@pytest.mark.parametrize(("text", "problem"), WRONG.items(), ids=list(WRONG.values()))
def test_what_is_wrong_is_one_line(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "acme.toml"
    file.write_text(text)
    with pytest.raises(CaptureError) as failed:
        read_drivers(file)
    assert problem in str(failed.value)
    assert str(file) in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_pipe_holds_up_no_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "acme.toml")
    with pytest.raises(CaptureError, match="it is a pipe or a device"):
        read_drivers(tmp_path / "acme.toml")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"[lib"], ids=["missing", "no text", "no TOML"])
def test_the_command_stops_before_the_script_with_exit_code_2(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "acme.toml"
    if content is not None:
        file.write_bytes(content)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(5)")
    result = CliRunner().invoke(stepscope, ["run", "--contexts", "--drivers", str(file), str(script)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_the_example_of_the_reference_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    file = tmp_path / "acme.toml"
    file.write_text(example)
    assert read_drivers(file) == (
        ("libacme.so*", "acmeLaunch", "launch", (("blocks", 0, 32, False), ("stream", 3, 64, False))),
        ("libacme.so*", "acmeMalloc", "allocate", (("bytes", 1, 64, False),)),
        ("libacme.so*", "acmeSynchronize", "synchronize", ()),
    )
