"""`stepscope verify` on tiny scripts: that a change is made, and what is said.

Most run in forks of a process that has PyTorch imported, the command itself in real processes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from machine_calibration import calibrated
from warm_python import run_warm

from stepscope.errors import CaptureError, ChangeError
from stepscope.models.verify.trials import TrialRun, execute
from stepscope.models.verify.verify import parse_specs
from stepscope.record.script_runner import Program

# Says at each step what a change would show in. What it imports is frozen: else garbage is looked
# for in all of it, which takes 1.5 s a process.
TRAINING = """
    import gc
    import sys
    import torch
    from torch.utils.data import DataLoader, get_worker_info
    gc.freeze()

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            worker = get_worker_info()
            return torch.rand(8), -1 if worker is None else worker.num_workers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 4)
        def forward(self, x):
            self.seen = self.inner(x)
            if "--picky" in sys.argv and self.seen.dtype != torch.float32:
                raise ValueError("only float32\\nhere")
            return self.seen.float()

    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gc.freeze()
    print("arguments", *sys.argv[1:])
    for batch, workers in DataLoader(Pairs(), batch_size=4):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("dtype", model.seen.dtype, "fused", optimizer.defaults["fused"],
              "workers", int(workers[0]), "world", torch.distributed.is_initialized()
              and torch.distributed.get_world_size(), flush=True)
    print("the end")
"""


@pytest.fixture
def script(tmp_path: Path) -> Program:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAINING))
    return Program(str(path), ("--lr", "3"))


def run(script: Program, change: str = "", warmup: int = 1, steps: int = 2) -> tuple[Any, list[str]]:
    """The facts of one run under a change, and what the script printed, under its labels; in forks."""
    asked = json.dumps([script.target, script.arguments, change, warmup, steps])
    command = [sys.executable, "-c", RUN_IN_FORK, asked]
    done = run_warm(command, Path(script.target).parent, 300, children_forked=True)
    assert done.returncode == 0, done.stderr
    facts, lines, error = json.loads(done.stdout)
    if error:
        raise CaptureError(error)
    return facts, lines


RUN_IN_FORK = f"""
import json, sys
sys.path.append({str(Path(__file__).parent)!r})
from test_verify import CaptureError, Program, run_in_processes
target, arguments, *how = json.loads(sys.argv[1])
try:
    answer = [*run_in_processes(Program(target, tuple(arguments)), *how), None]
except CaptureError as error:
    answer = [None, None, str(error)]
print(json.dumps(answer))
"""


def run_in_processes(
    script: Program, change: str = "", warmup: int = 1, steps: int = 2
) -> tuple[Any, list[str]]:
    """The same in new processes, unless this one was told to fork."""
    lines: list[str] = []
    specs = parse_specs(change) if change else ()
    facts = execute(
        TrialRun(
            script,
            warmup,
            steps,
            [spec.applied for spec in specs],
            processes=max((spec.processes for spec in specs), default=1),
            label=change,
        ),
        lambda label, line: lines.append(f"{label}: {line}"),
    )
    return facts, lines


def test_a_run_without_a_change_times_its_steps_and_then_ends_the_script(script: Program) -> None:
    facts, lines = run(script)
    assert len(facts["steps_ns"]) == len(facts["cpu_ns"]) == 2
    assert all(length > 0 for length in facts["steps_ns"])
    for part in facts["parts_ns"].values():
        assert all(0 < time < step for time, step in zip(part, facts["steps_ns"], strict=True))
    assert facts["threads"] == 1
    # The third step's end was the last thing measured; its line is no longer printed.
    plain = ": dtype torch.float32 fused None workers -1 world False"
    assert lines == [": arguments --lr 3", plain, plain]


def test_changes_are_made(script: Program) -> None:
    change = "amp+fused_optimizer+dataloader:workers=1"
    facts, lines = run(script, change)
    assert facts["applied"] == {
        "amp": {"count": 3, "dtype": "bfloat16", "device": "cpu"},
        "fused_optimizer": {"count": 1, "classes": ["AdamW"], "fused": True},
        "dataloader": {"count": 1, "workers": 1},
    }
    assert lines[1:] == [f"{change}: dtype torch.bfloat16 fused True workers 1 world False"] * 2


def test_a_model_is_compiled_in_place(script: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # a compiler takes its time, and is not ours
    told_with(script, '"compiled", model._compiled_call_impl is not None')
    facts, lines = run_in_processes(script, "compile")  # as the variable is read at import
    assert facts["applied"] == {"compile": {"count": 1}}
    assert [line.split()[-3] for line in lines[1:]] == ["True", "True"]


def test_several_processes_train_together(script: Program) -> None:
    facts, lines = run(script, "ddp:workers=2")
    assert facts["applied"] == {"ddp": {"count": 1, "world_size": 2, "backend": "gloo"}}
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"ddp:workers=2, rank {rank}: dtype")]
        assert [line.split()[-1] for line in mine] == ["2", "2"]


def told_with(script: Program, words: str) -> None:
    """The script says more at each step."""
    path = Path(script.target)
    path.write_text(path.read_text().replace('"world",', f'{words}, "world",'))


def test_optimizers_are_sharded_over_the_processes(script: Program) -> None:
    # Of weight and bias each process updates one, and has the other from its neighbor.
    told_with(script, "len(optimizer.state), float(model.inner.weight.sum()), float(model.inner.bias.sum())")
    facts, lines = run(script, "zero:workers=2", warmup=2)
    assert facts["applied"] == {
        "zero": {"count": 1, "world_size": 2, "backend": "gloo", "optimizers": ["AdamW"]}
    }
    first, second = (
        [line.split(": ")[1] for line in lines if f"rank {rank}: dtype" in line] for rank in (0, 1)
    )
    assert first == second
    assert len(set(first)) == 2  # and there was an update


def test_models_are_sharded_over_the_processes(script: Program) -> None:
    told_with(
        script,
        'type(optimizer.param_groups[0]["params"][0]).__name__, tuple(model.inner.weight.to_local().shape)',
    )
    facts, lines = run(script, "fsdp:workers=2,unit=inn*")
    assert facts["applied"] == {"fsdp": {"count": 1, "units": 1, "world_size": 2, "backend": "gloo"}}
    mine = [line for line in lines if "rank 1: dtype" in line]
    assert len(mine) == 2
    assert all("DTensor (2, 8)" in line for line in mine)  # half of the four rows


def test_gradients_are_sent_in_16_bits(script: Program) -> None:
    facts, lines = run(script, "ddp:workers=2+compress", steps=1)
    assert facts["applied"] == {
        "ddp": {"count": 1, "world_size": 2, "backend": "gloo"},
        "compress": {"count": 1, "dtype": "bfloat16"},
    }
    assert all("dtype torch.float32" in line for line in lines if "dtype" in line)


def test_without_a_module_of_that_name_nothing_is_sharded(script: Program) -> None:
    with pytest.raises(CaptureError, match="fsdp: nothing to apply it to"):
        run(script, "fsdp:workers=2,unit=outer", steps=1)


def test_a_script_that_fails_under_a_change_is_told_in_one_line(script: Program) -> None:
    picky = Program(script.target, ("--picky",))
    with pytest.raises(CaptureError) as caught:
        run(picky, "amp")
    assert str(caught.value) == f"{script.target} fails under amp: ValueError: only float32"


def test_a_script_that_ends_too_soon_or_has_nothing_to_change_is_told(script: Program) -> None:
    with pytest.raises(CaptureError, match=r"made 16 steps; it needs 1 to warm up and 90 more"):
        run(script, steps=90)
    path = Path(script.target)
    path.write_text(
        path.read_text().replace("optim.AdamW", "optim.Rprop").replace('optimizer.defaults["fused"]', "None")
    )
    with pytest.raises(CaptureError, match="fused_optimizer: nothing to apply it to"):
        run(script, "fused_optimizer")


def test_only_what_pytorch_can_do_by_itself_is_verified() -> None:
    with pytest.raises(ChangeError, match="choose one of amp, channels_last, compile, cudnn_benchmark"):
        parse_specs("gist")
    with pytest.raises(ChangeError, match=r"there is no change 'fsdpp'; did you mean fsdp\?"):
        parse_specs("fsdpp")
    for text, reason in (
        ("zero:stage=2", "zero: `verify` cannot apply stage=2, only: as `ddp`; a `ZeroRedundancyOptimizer`"),
        ("zero:by=deepspeed", "zero: `verify` cannot apply by=deepspeed"),
        ("amp:dtype=float16", "amp: `verify` cannot apply dtype=float16, only: `torch.autocast` to bfloat16"),
        ("ddp:bucket_cap_mb=1", "ddp: `verify` cannot apply bucket_cap_mb=1.0"),
        ("ddp:algorithm=tree", "ddp: `verify` cannot apply algorithm=tree"),
        ("dataloader:workers=0", "dataloader: `verify` needs workers=…, number of worker processes"),
        ("fsdp", "fsdp: `verify` needs unit=…, glob for the paths of the modules"),
    ):
        with pytest.raises(ChangeError, match=re.escape(reason)):
            parse_specs(text)
    for text in (
        "amp:dtype=bfloat16,estimate=low",
        "ddp:workers=2,bandwidth_gbps=1",
        "dataloader:computing=0.5",
    ):
        parse_specs(text)
    with pytest.raises(ChangeError, match="compile: expected KEY=VALUE with KEY one of estimate"):
        parse_specs("compile:mode=max")
    assert [spec.processes for spec in parse_specs("amp+ddp:workers=3")] == [1, 3]


def verify(script: Program, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from stepscope.faces.terminal import main; main()", "verify"]
    command += ["--warmup=1", "--steps=2", "--rounds=1", *words, script.target, *script.arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_answers_on_stdout_and_shows_the_script_on_stderr(script: Program) -> None:
    calibrated()
    done = verify(script, "--json", "dataloader:workers=1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["changes"] == ["dataloader:workers=1"]
    assert answer["script"] == f"{script.target} --lr 3"
    assert len(answer["before"]["rounds_ms"]) == len(answer["after"]["rounds_ms"]) == 1
    assert answer["error"] == pytest.approx(answer["predicted_step_ms"] / answer["after"]["step_ms"] - 1)
    assert (answer["right_sign"], answer["verdict"]) == (None, "cannot tell")  # one round
    # The prediction is of a step as long as the one measured without recording.
    assert answer["prediction"]["measured_step_ms"] == pytest.approx(answer["before"]["step_ms"], rel=1e-3)
    assert answer["prediction"]["changes"] == ["dataloader:workers=1"]
    assert answer["machine"]["threads"] == 1
    assert "[unchanged, round 1] dtype torch.float32" in done.stderr
    assert "[dataloader:workers=1, round 1] dtype torch.float32" in done.stderr


def test_bad_use_ends_with_code_2_and_one_line(script: Program, tmp_path: Path) -> None:
    for words, said in (
        (("gist",), "PyTorch cannot apply 'gist' to a script"),
        (("amp:speed=2",), "amp: expected KEY=VALUE"),
    ):
        done = verify(script, *words)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    done = verify(Program(str(tmp_path / "missing.py")), "amp")
    assert done.returncode == 2
    assert "there is no such file" in done.stderr


def test_what_sharding_costs_is_measured_by_tensors_and_bytes() -> None:
    small = (
        "import json; from stepscope.models.calibration import measure as s; "
        "s._UNITS = ((1, 8), (3, 16)); print(json.dumps(s.sharding()))"
    )
    done = subprocess.run([sys.executable, "-c", small], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert [row[:2] for row in facts["units"]] == [[1, 256], [3, 3072]]
    assert all(row[2] >= 1 for row in facts["units"])
    assert facts["operator"] >= 0
