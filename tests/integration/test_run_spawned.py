"""`stepscope run` on scripts that start their training processes themselves.

What a script prints does not depend on how: it is compared with what it prints when it forks,
without us.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from test_run import RUN, Capture, own_words, start, without_own_words, write
from warm_python import run_warm

pytest.importorskip("torch")

SCRIPT = """
    import gc, os, sys, torch, torch.multiprocessing as mp
    gc.freeze()  # garbage is looked for in all of PyTorch otherwise, which takes 2 s a process
    def work(number, method, steps):
        assert not [name for name in sys.argv if "stepscope" in name]
        torch.manual_seed(number)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        gc.freeze()  # it imports the compiler
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
        os.write(1, f"{number} {loss.item():.9f}\\n".encode())  # whole, whoever writes besides
        if steps == 1:
            raise ValueError("too few")
    if __name__ == "__main__":
        method, count, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        mp.start_processes(work, (method, steps), count, start_method=method)
        print("done")
"""


def both(folder: Path, method: str, *words: str, start=run_warm) -> tuple[str, str]:
    """Run the script with and without us; what our messages say, and the folder's captures."""
    write(folder, SCRIPT, "train.py")
    plain = run_warm([sys.executable, "train.py", "fork", *words], folder)
    done = start([*RUN, "train.py", method, *words], folder)
    assert done.returncode == plain.returncode
    assert sorted(done.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    assert messages_of_torch(without_own_words(done.stderr)) == messages_of_torch(plain.stderr)
    found = sorted(str(path.relative_to(folder)) for path in folder.glob("**/*.stepscope"))
    return own_words(done.stderr), " ".join(found)


def messages_of_torch(text: str) -> str:
    """Without what differs from run to run: times, processes, who came first."""
    return re.sub(r"(?m)^W\d.*\n?|Process \d|line \d+", "", text)


@pytest.mark.parametrize(
    ("method", "start"), [("spawn", start), ("forkserver", run_warm)], ids=["spawn", "forkserver"]
)
def test_each_process_is_a_rank(tmp_path: Path, method: str, start) -> None:
    said, files = both(tmp_path, method, "2", "9", start=start)
    assert files == "train/rank0.stepscope train/rank1.stepscope"
    assert "recorded 2 processes that the program started; wrote train\n" in said
    for rank in (0, 1):
        manifest = Capture.read(tmp_path / "train" / f"rank{rank}.stepscope").manifest
        assert (manifest["rank"], manifest["world_size"]) == (rank, 2)
        assert manifest["steps_recorded"] == [5, 6, 7]


def test_a_single_process_writes_the_run_s_file(tmp_path: Path) -> None:
    said, files = both(tmp_path, "spawn", "1", "9")
    assert files == "train.stepscope"
    assert "recorded 1 process that the program started; wrote train.stepscope" in said
    assert Capture.read(tmp_path / "train.stepscope").manifest["steps_recorded"] == [5, 6, 7]


def test_an_error_in_a_process_shows_as_without_us(tmp_path: Path) -> None:
    _, files = both(tmp_path, "spawn", "1", "1")
    assert files == "train.stepscope"


def test_processes_that_are_forked_are_ranks_too(tmp_path: Path) -> None:
    said, files = both(tmp_path, "fork", "2", "9")
    assert files == "train/rank0.stepscope train/rank1.stepscope"
    assert "recorded 2 processes that the program started; wrote train\n" in said
