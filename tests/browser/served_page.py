"""`stepscope view` in a process of its own, for tests and for pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
_URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*")


@contextmanager
def serving(home: Path, *arguments: str) -> Iterator[str]:
    """`stepscope view` with its cache in a folder; gives the URL that it prints."""
    environment = os.environ | {"STEPSCOPE_CACHE": str(home / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "stepscope", "view", "--no-browser", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield next(found[0] for line in lines if (found := _URL.search(line)))
        assert process.poll() is None, f"the server ended by itself: {process.returncode}"
    finally:
        process.terminate()
        process.communicate(timeout=60)
