"""`stepscope run` on real scripts: in new processes where their start matters, else in forks."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from warm_python import run_warm

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()"]

# What it imports is frozen: else garbage is looked for in all of it, which takes 1.5 s a process.
TRAINING = """
import gc, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
gc.freeze()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.freeze()
def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@dataclass
class Capture:
    """A capture file, read without stepscope."""

    manifest: dict[str, Any]
    roots: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "Capture":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            content = {name: json.loads(archive.read(name)) for name in archive.namelist()}
        events = content.get("trace.json", {"traceEvents": []})["traceEvents"]
        complete = [e for e in events if e.get("ph") == "X"]
        return cls(content["manifest.json"], content["modules.json"]["roots"], complete)

    def named(self, prefix: str) -> list[dict[str, Any]]:
        found = [e for e in self.events if e["name"].startswith(prefix)]
        return sorted(found, key=lambda e: e["ts"])

    def calls(self, path: str) -> int:
        return len([e for e in self.events if e["name"] == f"stepscope.module: {path}"])

    def steps(self) -> list[dict[str, Any]]:
        recorded = {f"ProfilerStep#{n}" for n in self.manifest["steps_recorded"]}
        return [e for e in self.named("ProfilerStep#") if e["name"] in recorded]


def start(command, folder, **options):
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **options
    )


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def record(folder: Path, *words: str, start=run_warm, **options):
    """Run `stepscope run WORDS` and read what it wrote."""
    done = start([*RUN, *words], folder, **options)
    files = list(folder.glob("**/*.stepscope"))
    assert len(files) == 1, done.stderr
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
    return done, Capture.read(files[0])


def own_words(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(True) if line.startswith("stepscope: "))


def without_own_words(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("stepscope: "))


def same_with_and_without(folder: Path, *words: str, start=run_warm, plain=None, **options):
    """Run a script both ways; its output, errors and exit code must not differ.

    `plain` starts it without us, where not `start` does: mostly it prints the same in a fork.
    """
    plain = (plain or start)([sys.executable, *words], folder, **options)
    done, capture = record(folder, *words, start=start, **options)
    assert done.stdout == plain.stdout
    assert without_own_words(done.stderr) == plain.stderr
    assert done.returncode == plain.returncode
    return done, capture


def test_the_script_notices_nothing(tmp_path):
    write(
        tmp_path,
        """
        import os, sys
        print({"torch", "numpy", "pyarrow", "msgspec", "rich"} & set(sys.modules))
        os.environ["OMP_NUM_THREADS"] = "3"
        print(sys.argv, sys.path[0], os.getcwd(), __name__, __file__, __spec__, sys.stdin.read())
        print(sorted(name for name in globals() if name.startswith("__")))
        import atexit, pickle, torch, helper
        print(torch.get_num_threads())
        class Pickled: pass
        print(type(pickle.loads(pickle.dumps(Pickled()))) is Pickled)
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        print(model.weight.sum().item(), file=sys.stderr)
        atexit.register(print, "at exit", sys.modules["__main__"].__file__)
        sys.exit(3)
        """,
        "code/train.py",
    )
    write(tmp_path, "", "code/helper.py")

    done, capture = same_with_and_without(
        tmp_path, "code/train.py", "--steps", "7", "-o", "x", start=start, input="typed in"
    )

    assert done.returncode == 3
    assert done.stdout.startswith("set()\n")
    assert "['code/train.py', '--steps', '7', '-o', 'x']" in done.stdout
    assert capture.manifest["outcome"] == "complete"
    assert capture.manifest["command"] == ["code/train.py", "--steps", "7", "-o", "x"]
    assert own_words(done.stderr) == (
        "stepscope: recorded steps 5 to 7; wrote train.stepscope\n"
        "stepscope: next: stepscope report train.stepscope\n"
    )


def test_a_module_runs_as_with_python_m(tmp_path):
    write(tmp_path, "", "project/__init__.py")
    write(
        tmp_path,
        TRAINING + "train(9)\nprint(sys.argv, sys.path[0], __name__, __spec__.name, __package__)",
        "project/train.py",
    )

    done, capture = same_with_and_without(tmp_path, "-m", "project.train", "--lr", "1", start=start)

    assert "project.train" in done.stdout
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert capture.manifest["command"] == ["-m", "project.train", "--lr", "1"]


def test_steps_tile_the_time_and_hold_their_work(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
from torch.utils.data import DataLoader
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for batch in DataLoader(torch.randn(40, 4), batch_size=4):
    loss = nn.MSELoss()(model(batch), batch)
    optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
""",
    )

    _, capture = record(tmp_path, "--warmup", "3", "--steps", "4", "--memory", "train.py")

    steps = capture.steps()
    assert capture.manifest["steps_recorded"] == [3, 4, 5, 6]
    assert len(steps) == len(capture.named("ProfilerStep#")) == 4
    for this, following in itertools.pairwise(steps):
        end = this["ts"] + this["dur"]
        assert end <= following["ts"]
        assert not [e["name"] for e in capture.events if end <= e["ts"] < following["ts"]]
    for prefix in ("enumerate(DataLoader)", "Optimizer.step#SGD.step", "stepscope.module: "):
        for event in capture.named(prefix):
            inside = [
                s
                for s in steps
                if s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"]
            ]
            assert len(inside) == 1, event["name"]
    for path in ("", "0", "1", "MSELoss"):
        assert capture.calls(path) == 4
    with zipfile.ZipFile(tmp_path / "train.stepscope") as archive:
        trace = json.loads(archive.read("trace.json"))
    assert any(e["name"] == "[memory]" for e in trace["traceEvents"])
    assert trace["record_shapes"] == 1


@pytest.mark.parametrize(
    ("steps", "recorded"), [(1, []), (2, [1]), (4, [1, 2, 3]), (5, [1, 2, 3]), (7, [5, 6])]
)
def test_a_script_that_ends_early_yields_what_it_had(tmp_path, steps, recorded):
    write(tmp_path, TRAINING + f"train({steps})\nmodel(torch.randn(2, 4))")

    done, capture = record(tmp_path, "train.py")

    assert done.returncode == 0
    assert capture.manifest["outcome"] == "ended_early"
    assert capture.manifest["steps_seen"] == steps
    assert capture.manifest["steps_recorded"] == recorded
    assert len(capture.steps()) == len(recorded)
    assert all("finished" not in step["args"] for step in capture.steps())
    assert bool(capture.manifest["warnings"]) == (recorded[:1] == [1])


def test_an_exception_shows_as_without_us(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
class Bad(nn.Module):
    def forward(self, x):
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("bad input") from error
train(3)
model.append(Bad())
train(1)
""",
    )

    done, capture = same_with_and_without(tmp_path, "train.py", start=start, plain=run_warm)

    assert done.returncode == 1
    assert "ValueError: bad input" in done.stderr
    assert capture.manifest["outcome"] == "raised"
    assert "raised ValueError after 3 training steps" in capture.manifest["message"]
    assert capture.manifest["steps_recorded"] == [1, 2]


def test_a_syntax_error_shows_as_without_us(tmp_path):
    write(tmp_path, "print('never'\n")

    done, capture = same_with_and_without(tmp_path, "train.py", start=start)

    assert "report" not in done.stderr
    assert capture.manifest["outcome"] == "raised"


@pytest.mark.parametrize("steps", [0, 2, 6, 20])
def test_ctrl_c_closes_the_capture(tmp_path, steps):
    write(
        tmp_path,
        TRAINING
        + f"""
import atexit, time
atexit.register(print, "at exit")
train({steps})
print("ready", flush=True)
while True:
    time.sleep(0.01)
""",
    )
    process = subprocess.Popen(
        [*RUN, "train.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    capture = Capture.read(tmp_path / "train.stepscope")
    assert process.returncode == -signal.SIGINT
    assert out == "at exit\n"
    assert without_own_words(err).endswith("KeyboardInterrupt\n")
    assert "stepscope/record" not in err
    assert capture.manifest["outcome"] == ("complete" if steps == 20 else "interrupted")
    assert capture.manifest["steps_recorded"] == {0: [], 2: [1], 6: [5], 20: [5, 6, 7]}[steps]


@pytest.mark.parametrize("function", ["_enable_profiler", "_disable_profiler"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_signal_handler_that_raises_as_torch_starts_or_ends_its_profiler(tmp_path, function, call):
    """In an early window or in the main one, which is opened again; no profiler is left running."""
    write(
        tmp_path,
        TRAINING
        + f"""
import signal
from torch.autograd import profiler
class Late(Exception): pass
def late(number, frame): raise Late
signal.signal(signal.SIGUSR1, late)
original, calls = profiler.{function}, []
def interrupted(*words):
    result = original(*words)
    calls.append(1)
    if len(calls) == {call}: signal.raise_signal(signal.SIGUSR1)
    return result
profiler.{function} = interrupted
for _ in range(20):
    try: train(1)
    except Late: print("late", torch.autograd._profiler_enabled())
print(torch.autograd._profiler_enabled())
""",
    )
    done, capture = record(tmp_path, "train.py")

    assert done.stdout == "late False\nFalse\n"
    assert done.returncode == 0
    assert capture.manifest["outcome"] == "complete"
    assert len(capture.manifest["steps_recorded"]) == 3
    assert len(capture.named("ProfilerStep#")) == 3


def test_a_script_without_torch_yields_a_capture_that_says_so(tmp_path):
    write(tmp_path, "print('hello')")

    done, capture = same_with_and_without(tmp_path, "train.py", start=start)

    assert "next: " not in done.stderr
    assert "no step was recorded: stepscope run records PyTorch" in done.stderr
    assert "jax" not in done.stderr
    assert capture.manifest["outcome"] == "no_steps"
    assert "imported neither torch nor JAX" in capture.manifest["message"]
    assert capture.manifest["framework"] is None
    assert (capture.roots, capture.events) == ([], [])


def test_a_script_that_only_infers_has_no_steps(tmp_path):
    write(
        tmp_path,
        """
        def main():
            import torch
            print(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)
        main()
        """,
    )

    _, capture = same_with_and_without(tmp_path, "train.py", start=start, plain=run_warm)

    assert capture.manifest["outcome"] == "no_steps"
    assert capture.manifest["framework_version"].startswith("2.")


def test_the_capture_survives_an_exit_without_ceremony(tmp_path):
    write(tmp_path, TRAINING + "train(10)\nimport os\nos._exit(7)")

    done, capture = record(tmp_path, "train.py", start=start)

    assert done.returncode == 7
    assert capture.manifest["outcome"] == "complete"


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write(folder, TRAINING + "train(10)")
    _, capture = record(folder, "train.py", start=start)
    assert capture.manifest["outcome"] == "complete"


@pytest.mark.parametrize("ended", [True, False])
def test_a_thread_that_trains_after_the_main_one_has_ended_is_recorded(tmp_path, ended):
    """To its end, or until SIGTERM."""
    write(
        tmp_path,
        TRAINING
        + f"""
import os, signal, threading, time
def later():
    threading.main_thread().join()
    train({20 if ended else 6})
    print("trained", flush=True)
    if not {ended}:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
threading.Thread(target=later).start()
print("main ends", flush=True)
""",
    )
    done, capture = record(tmp_path, "train.py")

    assert done.returncode == (0 if ended else -signal.SIGTERM)
    assert done.stdout == "main ends\ntrained\n"
    assert done.stderr == own_words(done.stderr)
    assert capture.manifest["steps_recorded"] == ([5, 6, 7] if ended else [1, 2, 3])
    assert capture.manifest["outcome"] == ("complete" if ended else "interrupted")


def test_children_neither_record_nor_write(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
import os
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    transform = nn.Linear(4, 4)
    def __len__(self): return 40
    @torch.no_grad()
    def __getitem__(self, index): return self.transform(torch.ones(4))
def main():
    method = sys.argv[1]
    for batch in DataLoader(Slow(), batch_size=4, num_workers=1, multiprocessing_context=method):
        loss = model(batch).sum()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    if method == "fork":
        child = os.fork()
        sys.exit(4 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if __name__ == "__main__":
    main()
""",
    )
    for method in ("fork", "spawn"):
        done, capture = record(tmp_path, "--overwrite", "train.py", method)

        assert done.returncode == (4 if method == "fork" else 0), done.stderr
        assert done.stderr == own_words(done.stderr)
        assert capture.manifest["steps_recorded"] == [5, 6, 7]
        assert [root["name"] for root in capture.roots] == ["model"]
        assert done.stderr.count("wrote") == 1


def test_each_rank_writes_its_own_file(tmp_path):
    write(tmp_path, TRAINING + "train(9)")

    done, capture = record(tmp_path, "train.py", env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"})

    assert (tmp_path / "train" / "rank1.stepscope").is_file()
    assert (capture.manifest["rank"], capture.manifest["world_size"]) == (1, 2)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "cannot run missing.py: there is no such file in"),
        (["-m", "no_such_module"], "cannot run module no_such_module: No module named"),
        (["missing/train"], "cannot run missing/train: there is no such file in"),
        (["missing"], "to run a module use `stepscope run -m missing`"),
        (["-o", "notes.txt", "train.py"], "the file exists and is not a capture"),
        (["-o", "/proc/x.stepscope", "train.py"], "is not writable"),
        (["-o", "a" * 300, "train.py"], "File name too long; choose another file with -o"),
        (["--warmup", "0", "train.py"], "0 is not in the range x>=1"),
    ],
)
def test_bad_use_is_refused_before_the_script_runs(tmp_path, words, message):
    write(tmp_path, "print('ran')")
    (tmp_path / "notes.txt").write_text("mine")

    done = start([*RUN, *words], tmp_path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert ("run -m" in done.stderr) is (words == ["missing"])
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_python_stacks_name_the_modules_too(tmp_path):
    """torch.profiler's tracer takes modules from the locals of what it sees as their `__call__`."""
    write(tmp_path, TRAINING + "train(10)")
    done, capture = record(tmp_path, "--stack", "train.py")
    assert done.returncode == 0, done.stderr
    steps = len(capture.manifest["steps_recorded"])
    assert capture.calls("0") == steps
    frames = [event["name"] for event in capture.named("nn.Module: ")]
    for module in ("Sequential_0", "Linear_0", "ReLU_0"):
        assert frames.count(f"nn.Module: {module}") == steps
    assert capture.named("train.py(")


@pytest.mark.parametrize("start", [start, run_warm], ids=["new process", "compiler imported"])
def test_a_compiled_model_compiles_as_without_us(tmp_path, start):
    write(
        tmp_path,
        """
        import torch
        from torch import nn
        import torch._dynamo
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
            def forward(self, x):
                x = self.first(x)
                torch._dynamo.graph_break()
                return self.second(x)
        graphs = []
        def backend(graph, inputs):
            graphs.append(len(graph.graph.nodes))
            return graph
        net = Net()
        model = torch.compile(net, backend=backend)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(10):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            print(step, graphs, dict(torch._dynamo.utils.counters["frames"]))
        """,
    )

    _, capture = same_with_and_without(tmp_path, "train.py", start=start, plain=run_warm)

    assert capture.calls("") == 3
    assert capture.roots[0]["class"] == "__main__.Net"


def test_a_script_that_profiles_itself_is_left_alone(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
with torch.profiler.profile() as profiler:
    train(10)
print(sorted(e.key for e in profiler.key_averages() if e.key.startswith("stepscope.module: x")))
""",
    )

    plain = run_warm([sys.executable, "train.py"], tmp_path)
    done, capture = record(tmp_path, "train.py")

    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert "the script runs its own profiler" in capture.manifest["warnings"][0]
    assert capture.manifest["steps_recorded"] == []


def test_unrecorded_steps_of_the_same_run_are_timed(tmp_path):
    """The program times itself with a clock that a step advances: the truth is known."""
    write(
        tmp_path,
        TRAINING
        + """
from stepscope.record.unreplaced import time
clock = [0]
time.perf_counter_ns = lambda: clock[0]
time.thread_time_ns = lambda: clock[0] // 2
before = torch.optim.SGD.step
for step in range(40):
    clock[0] += 1000 + step
    train(1)
""",
    )
    _, capture = record(tmp_path, "train.py")
    lengths = [1000 + step for step in range(9, 29)]
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    unrecorded, recorded = (capture.manifest[f"{kind}_steps"] for kind in ("unrecorded", "recorded"))
    expected = {"count": 20, "median_ns": lengths[10], "p10_ns": lengths[2], "p90_ns": lengths[17]}
    assert expected.items() <= unrecorded.items()
    assert unrecorded["parts"]["rest"] == {
        "median_ns": lengths[10],
        "p10_ns": lengths[2],
        "p90_ns": lengths[17],
        "recurring_ns": round((sum(lengths[:-1]) + lengths[-2]) / 20),
        "cpu_ns": pytest.approx(lengths[10] / 2, abs=1),
    }
    assert (recorded["count"], recorded["median_ns"]) == (3, 1006)
    report = start([sys.executable, "-m", "stepscope", "report", "train.stepscope"], tmp_path)
    assert len(re.findall(r"^Step [\d.]+ ms ", report.stdout, re.MULTILINE)) == 1


def test_torch_is_as_it_was_when_enough_steps_are_timed(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
train(300)
print(len(torch.optim.Optimizer.profile_hook_step.__code__.co_freevars))
print(torch.nn.Module.__call__.__module__)
""",
    )
    done, capture = record(tmp_path, "train.py")
    assert done.stdout == "0\ntorch.nn.modules.module\n"
    assert 20 <= capture.manifest["unrecorded_steps"]["count"] <= 110


@pytest.mark.parametrize(("steps", "count"), [(8, None), (11, None), (12, 3), (20, 11)])
def test_a_run_that_ends_soon_after_the_recording(tmp_path, steps, count):
    write(tmp_path, TRAINING + f"train({steps})")
    _, capture = record(tmp_path, "train.py")
    unrecorded = capture.manifest["unrecorded_steps"]
    assert (unrecorded and unrecorded["count"]) == count


def test_a_script_marks_its_steps(tmp_path):
    write(
        tmp_path,
        TRAINING
        + """
import stepscope
for update in range(16):
    train(2)
    stepscope.step()
""",
    )
    _, capture = record(tmp_path, "train.py")
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert len(capture.named("Optimizer.step#SGD.step")) == 6
    assert capture.manifest["step_is"] == "what the script marks with stepscope.step()"
    assert capture.manifest["unrecorded_steps"]["count"] == 7


def test_a_step_may_be_several_steps_of_the_optimizer(tmp_path):
    write(tmp_path, TRAINING + "train(40)")
    _, capture = record(tmp_path, "--step-every", "4", "train.py")
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert len(capture.named("Optimizer.step#SGD.step")) == 12
    assert len(capture.steps()) == 3
