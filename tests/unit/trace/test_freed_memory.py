"""Memory that is freed while a trace is read is there for the next array."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.faces.terminal import commands
from stepscope.trace import freed_memory
from stepscope.trace.freed_memory import freed_memory_kept, glibc

SIZE = 64 << 20  # glibc returns what is larger than 32 MiB to the kernel

pytestmark = pytest.mark.skipif(glibc() is None, reason="no glibc")


def faults_of_array() -> int:
    """How many pages an array of SIZE takes from the kernel."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(SIZE, np.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_an_array_takes_the_memory_of_the_one_before_it() -> None:
    usual = faults_of_array()
    with freed_memory_kept():
        faults_of_array()
        assert faults_of_array() <= 8 < usual


def test_kept_memory_is_returned_in_the_end() -> None:
    before = resident_bytes()
    with freed_memory_kept():
        faults_of_array()
        assert resident_bytes() - before > SIZE // 2
    assert resident_bytes() - before < SIZE // 2


def test_it_is_returned_after_an_error_too() -> None:
    before = resident_bytes()
    with pytest.raises(ZeroDivisionError), freed_memory_kept():
        faults_of_array() / 0
    assert resident_bytes() - before < SIZE // 2
    assert faults_of_array() > 8


def test_commands_keep_freed_memory_and_the_api_leaves_the_allocator_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changes: list[object] = []
    monkeypatch.setattr(freed_memory, "_set", lambda library, values: changes.append(values))
    file = tmp_path / "trace.json"
    file.write_text('[{"ph": "X", "name": "mm", "cat": "cpu_op", "ts": 1, "dur": 1}]')
    stepscope.open(file, cache=False)
    assert not changes
    CliRunner().invoke(commands.stepscope, ["report", "--no-cache", str(file)])
    assert changes


def test_commands_keep_memory_before_numpy_starts_threads_with_memory_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text('[{"ph": "X", "name": "mm", "cat": "cpu_op", "ts": 1, "dur": 1}]')
    program = f"""
import sys
from stepscope.trace import freed_memory
freed_memory._set = lambda library, values: print("numpy" in sys.modules, file=sys.stderr)
from stepscope.faces.terminal import main
sys.argv = ["stepscope", "report", {str(file)!r}, "--no-cache"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.split() == ["False", "True"], done.stderr
