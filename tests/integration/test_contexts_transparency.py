"""A program that is watched sees no difference."""

import signal
import subprocess
import sys
import zipfile

import pytest

MODEL = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
for _ in range(3):
    model(torch.randn(4, 8)).sum().backward()
"""


def run(tmp_path, source, *options):
    script = tmp_path / "script.py"
    script.write_text(MODEL + source)
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "run",
        "--contexts",
        *options,
        "-o",
        str(tmp_path / "run.stepscope"),
        str(script),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("options", [(), ("--sample", "100", "--sample-real", "100")])
def test_no_thread_of_stepscope_shows(tmp_path, options):
    source = """
import threading
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
"""
    done = run(tmp_path, source, *options)
    assert done.stdout == "1 ['MainThread']\n"
    assert done.returncode == 0


def test_signals_and_timers_are_the_programs_own(tmp_path):
    source = """
import signal
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_PROF))
print([str(s) for s in signal.valid_signals() if signal.getsignal(s) is None])
"""
    done = run(tmp_path, source, "--sample", "1000")
    assert done.stdout == "set() (0.0, 0.0)\n[]\n"


def test_models_that_outlive_the_interpreter_leave_no_traceback(tmp_path):
    source = """
import os, sys
os.kept, torch.kept, sys.kept = model, nn.Linear(8, 8), nn.Linear(8, 8)
torch.kept(torch.randn(2, 8)), sys.kept(torch.randn(2, 8))
"""
    done = run(tmp_path, source)
    assert all(line.startswith("stepscope: ") for line in done.stderr.splitlines()), done.stderr


def test_training_in_a_thread_prints_nothing_more(tmp_path):
    source = """
import threading
def train():
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
    done = run(tmp_path, source)
    assert all(line.startswith("stepscope: ") for line in done.stderr.splitlines()), done.stderr


SLOW = """
import time
for _ in range(250):
    model(torch.randn(4, 8))
    time.sleep(0.01)
"""


def test_an_earlier_capture_is_kept_when_the_file_is_flushed(tmp_path):
    run(tmp_path, "")
    earlier = (tmp_path / "run.stepscope").read_bytes()
    done = run(tmp_path, SLOW)
    assert (tmp_path / "run.1.stepscope").read_bytes() == earlier
    assert "kept the earlier capture as run.1.stepscope" in done.stderr
    with zipfile.ZipFile(tmp_path / "run.stepscope") as archive:
        assert b'"complete"' in archive.read("manifest.json")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run.1.stepscope", "run.stepscope", "script.py"]


def test_a_file_of_another_run_is_not_flushed_over(tmp_path):
    source = SLOW.replace(
        "import time",
        f"""
import time
open({str(tmp_path / "run.stepscope")!r}, "wb").write(b"another run's")
""",
    )
    done = run(tmp_path, source)
    assert (tmp_path / "run.stepscope").read_bytes() == b"another run's"
    assert "run-2.stepscope" in done.stderr


def test_a_killed_run_leaves_a_file_with_final_names(tmp_path):
    source = f"""
import os, signal, time, zipfile
def is_written():  # with the model, however late a busy machine does it
    try:
        return b'"0"' in zipfile.ZipFile({str(tmp_path / "run.stepscope")!r}).read("contexts.json")
    except OSError:
        return False
while not is_written():
    model(torch.randn(4, 8))
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(tmp_path, source)
    assert done.returncode == -signal.SIGKILL
    with zipfile.ZipFile(tmp_path / "run.stepscope") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "modules.json", "contexts.json"]
        assert b'"running"' in archive.read("manifest.json")
        assert b'"0"' in archive.read("contexts.json")  # a child of the only model: no prefix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.stepscope", "script.py"]
