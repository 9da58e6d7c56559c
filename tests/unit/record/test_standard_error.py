"""Lines of native libraries are removed from standard error; nothing else is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.record.process_exit import say

SCRIPT = """
import os
from stepscope.record.process_exit import without_lines
with without_lines(b"noise"):
    os.write(2, b"first\\nsome noise\\nlast")
os.write(2, b" of all\\n")
"""


def test_only_such_lines_are_removed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert done.stderr == b"first\nlast of all\n"


def test_a_closed_descriptor_is_no_error() -> None:
    script = "import os\nos.close(2)\nfrom stepscope.record.process_exit import without_lines\n"
    script += "with without_lines(b'noise'):\n    pass\nprint('done')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"done\n"


def test_a_line_of_ours_never_reaches_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say("heard")
    assert capsys.readouterr() == ("", "stepscope: heard\n")
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw, and in daemons
    say("lost")
    assert capsys.readouterr().out == ""
