"""Lines of native libraries are removed from standard error; nothing else is lost."""

from __future__ import annotations

import subprocess
import sys

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
