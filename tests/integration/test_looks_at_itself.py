"""What a script sees of `stepscope run` and `watch` when it looks: what the documentation lists, no more.

`looks_at_itself.py` evaluates a table of probes before, while and after it trains, and at exit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="probes /proc")]
SCRIPT = Path(__file__).with_name("looks_at_itself.py")
# Listed under "What the script can notice" in docs/guide/capture.md.
ALWAYS = {"finders", "callbacks at exit", "stack", "bottom", "recursion", "files"}
ALWAYS |= {"hooks of all optimizers", "loader", "save", "referrers of the model"}
ALWAYS |= {
    "weak references",
    "referrers of globals",
    "cached importers",
    "cached lines",
    "command",
    "libraries",
}
THREADS = {"native threads", "signals of the kernel"}  # glibc's own, of native threads
NOTICED = {
    "run": {*ALWAYS, *THREADS, "traceback", "call", "profiler flag", "profiler type"},
    "watch": {*ALWAYS, *THREADS, "callbacks of collection", "descriptors"},
}


def seen(words: list[str], folder: Path) -> dict[tuple[str, str], str]:
    """What each probe gives at each moment."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "temporary").mkdir(parents=True)
    shutil.copyfile(SCRIPT, folder / "train.py")
    own = {"TMPDIR": str(folder / "temporary"), "STEPSCOPE_REQUESTS": str(folder.parent / "requests")}
    done = subprocess.run(
        [sys.executable, *words, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {(moment, name): re.sub(r"0x[0-9a-f]+", "0x", value) for moment, name, value in rows}


def test_a_script_sees_what_is_listed(tmp_path: Path) -> None:
    alone = seen([], tmp_path / "work")
    assert len({name for _, name in alone}) >= 135
    for command, noticed in NOTICED.items():
        watched = seen(["-m", "stepscope", command], tmp_path / "work")
        assert watched.keys() == alone.keys()
        different = {name for (moment, name), value in alone.items() if watched[moment, name] != value}
        assert different <= noticed, dict.fromkeys(different, different - noticed)
