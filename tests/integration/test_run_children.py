"""`stepscope run` on scripts that start the processes that train, in every way Python has.

What differs is how the children start; their parents run in forks. What a script prints does not
depend on how: it is compared with what it prints when it forks, without us.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_run import RUN, Capture, own_words, without_own_words, write
from warm_python import run_warm

pytest.importorskip("torch")

TRAINING = """
    import gc, os, sys, multiprocessing, torch
    gc.freeze()  # garbage is looked for in all of PyTorch otherwise, which takes 2 s a process
    from concurrent.futures import ProcessPoolExecutor

    def train(number, steps=9):
        assert not [name for name in sys.argv if "stepscope" in name]
        torch.manual_seed(number)
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        gc.freeze()  # it imports the compiler
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
        os.write(1, f"{number} {loss.item():.9f}\\n".encode())
        return loss.item()

    def evaluate(number):
        with torch.no_grad():
            os.write(1, f"{torch.ones(3).sum()} {number}\\n".encode())

    class Trainer(multiprocessing.get_context(sys.argv[1]).Process):
        def __init__(self, number):
            super().__init__(args=(number,))
            self.number = number
        def run(self):
            train(self.number)

    def start_all(processes):
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print([process.exitcode for process in processes])
"""

PROCESSES = """
    if __name__ == "__main__":
        method = multiprocessing.get_context(sys.argv[1])
        start_all([method.Process(target=train, args=(number,)) for number in range(2)])
        start_all([method.Process(target=evaluate, args=(5,))])
"""
SUBCLASS = """
    if __name__ == "__main__":
        start_all([Trainer(3)])
"""
POOL = """
    if __name__ == "__main__":
        method = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(1, mp_context=method) as pool:
            print(sum(pool.map(train, range(2))))
"""
WITHOUT = """
    if __name__ == "__main__":
        method = multiprocessing.get_context(sys.argv[1])
        start_all([method.Process(target=evaluate, args=(5,))])
        method.Manager().shutdown()
        data = torch.utils.data.TensorDataset(torch.ones(4, 2))
        loader = torch.utils.data.DataLoader(
            data, num_workers=1, multiprocessing_context=sys.argv[1]
        )
        print(len(list(loader)))
"""
NESTED = """
    def outer(number):
        process = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(number,))
        process.start()
        process.join()

    if __name__ == "__main__":
        start_all([multiprocessing.get_context(sys.argv[1]).Process(target=outer, args=(7,))])
"""
FORK = """
    train(0)
    children = [os.fork()]
    if children[0] == 0:
        train(1)
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
GROUP = """
    import torch.distributed as distributed

    def work(rank, size, store):
        distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        train(rank)
        distributed.destroy_process_group()

    if __name__ == "__main__":
        method = multiprocessing.get_context(sys.argv[1])
        store = os.path.abspath("store")
        start_all([method.Process(target=work, args=(rank, 2, store)) for rank in range(2)])
"""
METHODS = ["fork", "spawn", "forkserver"]


def both(folder: Path, script: str, method: str) -> tuple[str, list[str]]:
    """Run a script with and without us; what our messages say, and the captures."""
    write(folder, TRAINING + script, "train.py")
    plain = without_us(folder)
    done = run_warm([*RUN, "train.py", method], folder)
    assert done.returncode == plain.returncode, done.stderr
    assert sorted(done.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    assert without_own_words(done.stderr) == plain.stderr
    found = sorted(str(path.relative_to(folder)) for path in folder.glob("**/*.stepscope"))
    return own_words(done.stderr), found


def without_us(folder: Path) -> subprocess.CompletedProcess[str]:
    """What the script prints that is in a folder."""
    done = run_warm([sys.executable, "train.py", "fork"], folder)
    (folder / "store").unlink(missing_ok=True)
    return done


def steps(path: Path) -> list[int]:
    manifest = Capture.read(path).manifest
    assert manifest["step_ends_after"] == "SGD.step"
    return list(manifest["steps_recorded"])


@pytest.mark.parametrize("method", METHODS)
def test_each_process_that_trains_has_its_file(tmp_path: Path, method: str) -> None:
    said, files = both(tmp_path, PROCESSES, method)
    assert files == ["train-process1.stepscope", "train-process2.stepscope"]
    assert "recorded 2 processes that the program started; wrote train-process1.steps" in said
    assert [steps(tmp_path / file) for file in files] == [[5, 6, 7]] * 2


@pytest.mark.parametrize("method", METHODS)
def test_a_class_of_processes(tmp_path: Path, method: str) -> None:
    _, files = both(tmp_path, SUBCLASS, method)
    assert files == ["train-process1.stepscope"]


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_of_an_executor(tmp_path: Path, method: str) -> None:
    said, files = both(tmp_path, POOL, method)
    assert files == ["train-process1.stepscope"]
    assert "recorded 1 process that the program started; wrote train-process1.stepscope" in said


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_do_not_train_leave_no_file(tmp_path: Path, method: str) -> None:
    said, files = both(tmp_path, WITHOUT, method)
    assert "that the program started" not in said
    assert files == ["train.stepscope"]


@pytest.mark.parametrize("method", METHODS)
def test_a_process_of_a_process(tmp_path: Path, method: str) -> None:
    _, files = both(tmp_path, NESTED, method)
    assert files == ["train-process1.1.stepscope"]


def test_a_fork_that_trains_on(tmp_path: Path) -> None:
    said, files = both(tmp_path, FORK, "fork")
    assert files == ["train-process1.stepscope", "train.stepscope"]
    assert "recorded 1 process that the program started; wrote train-process1.stepscope" in said
    assert [steps(tmp_path / file) for file in files] == [[5, 6, 7]] * 2


@pytest.mark.parametrize("method", METHODS)
def test_processes_of_a_group_are_its_ranks(tmp_path: Path, method: str) -> None:
    said, files = both(tmp_path, GROUP, method)
    assert files == ["train/rank0.stepscope", "train/rank1.stepscope"]
    assert "recorded 2 processes that the program started; wrote train\n" in said
    for rank, file in enumerate(files):
        manifest = Capture.read(tmp_path / file).manifest
        assert (manifest["rank"], manifest["world_size"]) == (rank, 2)
