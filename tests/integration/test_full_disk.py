"""A command that cannot write its file says so in one line, and leaves nothing behind.

No file may grow beyond a bound, so that writing fails at the first byte beyond it, as on a disk
that is full from there on: in the file asked for, in the cache and in temporary files.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from writing_commands import COMMANDS, check_files, files_in, finish, strangers, write_inputs

OF_A_SCRIPT = ("run", "run --memory", "run --contexts")  # whose exit code counts
OTHERS = ("trace_handler",)  # what a script calls raises in the script
WRITING = [name for name, command in COMMANDS.items() if command.checks and name not in OTHERS]


@pytest.mark.skipif(os.name != "posix", reason="there are no such limits")
@pytest.mark.parametrize("most_bytes", [100, 3000])
@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_named_and_nothing_stays_behind(name: str, most_bytes: int, tmp_path: Path) -> None:
    (inputs := tmp_path / "inputs").mkdir()
    write_inputs(inputs)
    folder = tmp_path / "work"
    shutil.copytree(inputs, folder)
    code, printed = finish(COMMANDS[name], folder, most_bytes)
    text = printed.decode()
    assert "Traceback" not in text
    assert strangers(COMMANDS[name], folder, inputs) == []
    assert files_in(folder / "temporary") == {}
    if outputs(name, folder):  # it is smaller than that
        check_files(COMMANDS[name], folder, is_over=True)
    else:
        assert code == (0 if name in OF_A_SCRIPT else 2), text
        assert "File too large" in text.splitlines()[-1]


def outputs(name: str, folder: Path) -> list[Path]:
    return [path for pattern in COMMANDS[name].checks for path in folder.glob(pattern)]
