"""`stepscope run --contexts` and its like on real scripts in real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from collected import Collected
from warm_python import run_warm

from stepscope.read import read

RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()", "--contexts"]
TRAINING = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(TRAINING + textwrap.dedent(text))
        return path

    return write


def start(command, folder, **environment):
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_whole_run_is_one_small_file(script, tmp_path):
    path = script("train(30); print('done', *sys.argv[1:]); sys.exit(3)")
    done = start([*RUN, str(path), "--lr", "1"], tmp_path)
    assert (done.returncode, done.stdout) == (3, "done --lr 1\n")
    run = Collected.read(tmp_path / "train.stepscope")
    assert run.manifest["contains"] == ["contexts"]
    assert run.manifest["outcome"] == "complete"
    assert run.manifest["command"] == [str(path), "--lr", "1"]
    assert [c.count for c in run.named("aten::addmm")] == [30]
    (linear,) = run.named("aten::linear")
    # the stack begins with the script, not with what runs it
    assert [(c.kind, c.name) for c in linear.path[1:4]] == [
        ("thread", "main"),
        ("python", "<module>"),
        ("python", "train"),
    ]
    assert linear.path[2].file == str(path)
    assert "next: stepscope contexts train.stepscope" in done.stderr
    assert (tmp_path / "train.stepscope").stat().st_size < 100_000


def test_it_opens_as_a_trace_without_events(script, tmp_path):
    run_warm([*RUN, str(script("train(2)"))], tmp_path)
    trace = read(tmp_path / "train.stepscope")
    assert len(trace.events) == 0
    assert not len(trace["warnings"])


def test_an_error_in_the_script_leaves_its_contexts_and_its_traceback(script, tmp_path):
    done = run_warm([*RUN, str(script("train(2); raise ValueError('mine')"))], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-3].startswith("ValueError: mine")
    run = Collected.read(tmp_path / "train.stepscope")
    assert run.manifest["outcome"] == "raised"
    assert run.named("aten::addmm")


def test_a_killed_run_leaves_a_valid_file(script, tmp_path):
    """The file is written now and then, whatever the machine is at; some time it has operators."""
    path = script("while True: train(10)")
    file = tmp_path / "train.stepscope"
    running = subprocess.Popen([*RUN, str(path)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while not has_operators(file) and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.2)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    run = Collected.read(file)
    assert run.manifest["outcome"] == "running"
    assert run.content["complete"] is False
    assert sum(c.count for c in run.named("aten::addmm")) > 0


def has_operators(file):
    return file.exists() and Collected.read(file).named("aten::addmm")


def test_a_forked_child_writes_no_file(script, tmp_path):
    text = """
        import os
        train(2)
        if os.fork() == 0:
            train(2)
            sys.exit(0)
        os.wait()
        train(1)
    """
    done = run_warm([*RUN, str(script(text))], tmp_path)
    assert done.returncode == 0, done.stderr
    run = Collected.read(tmp_path / "train.stepscope")
    assert sum(c.count for c in run.named("aten::addmm")) == 3


@pytest.mark.parametrize("block", [False, True])
def test_without_a_compiler_the_program_runs_and_a_line_says_why(script, tmp_path, block):
    inner = "import stepscope\nwith stepscope.record_contexts():\n    train(3)"
    path = script(inner if block else "train(3)")
    nothing = {"PATH": "/nowhere", "CXX": "", "STEPSCOPE_BUILDS": str(tmp_path / "none")}
    command = [sys.executable, str(path)] if block else [*RUN, str(path)]
    done = run_warm(command, tmp_path, env={**os.environ, **nothing})
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "compiler" in line]
    assert line.startswith("stepscope: no contexts: no C++ compiler found")
    assert "stepscope run --stack" in line
    assert not (tmp_path / "train.stepscope").exists()


COMPILED = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x)
            return nn.functional.gelu(y) + 1

    net = Net()
    model = torch.compile(net)
    for _ in range(3):
        with torch.no_grad():
            model(torch.randn(4, 16))
    """


def test_compiled_kernels_stand_in_their_region_below_their_source_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(COMPILED))
    for cached in (False, True):  # inductor takes the graph from its cache the second time
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        done = start([*RUN, str(path)], tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        run = Collected.read(tmp_path / "train.stepscope")
        (kernel,) = [c for c in run.of_kind("operator") if "cpp_fused" in c.name]
        assert "compiled region forward" in [c.name for c in kernel.path]
        assert kernel.count == 3
        assert (kernel.parent.file, kernel.parent.line) == (str(path), 12)
        products = [c.lines(path)[-1] for c in run.named("aten::addmm")]
        assert set(products) == {11}
        if not cached:
            assert (kernel.file, kernel.line) == (str(path), 12)
        assert not [c.file for c in run.of_kind("python") if "inductor" in c.file]
        assert run.counts()["compilation of forward"] == 1


@pytest.fixture
def entry_point(tmp_path):
    """The environment with our entry point in it, whatever state the installed package is in."""
    folder = tmp_path / "installed" / "stepscope_entry-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stepscope-entry\nVersion: 0\n")
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    group = '[project.entry-points."torch.backends"]\n'
    line = project.partition(group)[2].splitlines()[0].replace('"', "")
    (folder / "entry_points.txt").write_text(f"[torch.backends]\n{line}\n")
    return {"PYTHONPATH": str(folder.parent)}


def test_a_variable_suffices_where_neither_code_nor_command_can_change(script, tmp_path, entry_point):
    path = script("train(4); print('done')")
    file = tmp_path / "job.stepscope"
    done = start([sys.executable, str(path)], tmp_path, STEPSCOPE_CONTEXTS=str(file), **entry_point)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    run = Collected.read(file)
    assert run.manifest["outcome"] == "complete"
    assert [c.count for c in run.named("aten::addmm")] == [4]


def test_without_the_variable_nothing_of_ours_is_imported(script, tmp_path, entry_point):
    path = script("print(sorted(m for m in sys.modules if m.startswith('stepscope')))")
    done = start([sys.executable, str(path)], tmp_path, **entry_point)
    assert "stepscope.record" not in done.stdout
    assert "stepscope.autoload" in done.stdout


def test_a_variable_that_cannot_be_followed_stops_no_job(script, tmp_path, entry_point):
    path = script("train(1); print('done')")
    (tmp_path / "notes.txt").write_text("mine")
    variable = str(tmp_path / "notes.txt")
    done = start([sys.executable, str(path)], tmp_path, STEPSCOPE_CONTEXTS=variable, **entry_point)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "no contexts are collected" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"
