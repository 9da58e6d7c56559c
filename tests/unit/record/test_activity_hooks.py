"""What torch reports to the log of a run, with a clock that only the test advances."""

from __future__ import annotations

import inspect
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader

from stepscope.record.run_shares.activity_hooks import _OF_LIBRARIES, ActivityHooks
from stepscope.record.run_shares.activity_log import ActivityLog
from stepscope.record.run_shares.run_shares import describe
from stepscope.record.unreplaced import time


class Run:
    """A clock, and a log of what torch does meanwhile."""

    def __init__(self) -> None:
        self.ns = 0
        self.log = ActivityLog()
        self.hooks = ActivityHooks(self.log)

    def ms(self, length: float) -> None:
        self.ns += round(length * 1e6)

    def facts(self) -> dict[str, Any]:
        facts = describe(self.log, 1, ended=True)
        assert facts is not None
        assert facts["elapsed_ns"] == self.ns
        return facts

    def shares(self) -> dict[str, float]:
        return {name: ns / 1e6 for name, ns in self.facts()["stages_ns"].items() if ns}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: found.ns if found else 0)
    found: Run | None = None
    found = Run()
    yield found
    found.hooks.remove()


class Model(nn.Module):
    """A pass takes 3 ms forwards and 5 backwards."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.run = run

    def forward(self, x: Any) -> Any:
        self.run.log.model_called()
        self.run.ms(3)
        return Timed.apply(self.inner(x), self.run).sum()


class Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, run: Run) -> Any:
        ctx.run = run
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.run.ms(5)
        return gradient, None


class Optimizer(torch.optim.SGD):
    """A step takes 2 ms."""

    def __init__(self, run: Run, model: Any) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.run = run

    def step(self, closure: Any = None) -> Any:
        self.run.ms(2)
        return super().step(closure)


BATCH = torch.ones(1, 2)


def train(model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(BATCH).backward()
        optimizer.step()


@torch.no_grad()
def validate(model: Any, batches: int = 4) -> None:
    model.eval()
    for _ in range(batches):
        model(BATCH)
    model.train()


@pytest.fixture
def model(run: Run) -> Model:
    return Model(run)


@pytest.fixture
def optimizer(run: Run, model: Model) -> Optimizer:
    return Optimizer(run, model)


def test_validation_and_saving(run: Run, model: Any, optimizer: Any, tmp_path: Path) -> None:
    class Slow:
        def __reduce__(self) -> Any:
            run.ms(9)
            return int, ()

    run.ms(30)
    for _ in range(3):
        train(model, optimizer, 10)
        validate(model)
        torch.save({"extra": Slow()}, tmp_path / "model.pt")
    assert run.shares() == {"start_up": 30, "training_steps": 300, "evaluation": 36, "checkpointing": 27}
    places = run.facts()["places"]
    assert [place["function"] for place in places] == ["validate", "test_validation_and_saving"]
    assert {place["file"] for place in places} == {__file__}
    assert [place["count"] for place in places] == [3, 3]


@pytest.mark.parametrize("row", _OF_LIBRARIES, ids=lambda row: f"{row[0]} {row[1]}")
def test_what_libraries_spend_around_saving_and_evaluating_is_counted(
    run: Run, model: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    module, kind, holder, names = row

    def work(*_: Any) -> None:
        run.ms(3)
        torch.save({}, io.BytesIO()) if kind == "saving" else validate(model, 1)
        run.ms(4)

    functions = dict.fromkeys(names, work)
    found: Any = ModuleType(module)
    vars(found).update({holder: type(holder, (), functions)} if holder else functions)
    monkeypatch.setitem(sys.modules, module, found)
    run.hooks._watch_library(*row)
    for name in names:
        train(model, optimizer, 10)
        getattr(getattr(found, holder)() if holder else found, name)()
    stage, each_ms = ("checkpointing", 7) if kind == "saving" else ("evaluation", 10)
    count = len(names)
    assert run.shares() == {"training_steps": 100 * count, stage: each_ms * count}


def test_saves_inside_of_a_function_of_torch_that_saves_are_part_of_it(
    run: Run, model: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in torch.distributed.checkpoint: all of them are called, as seen from the program, by one line."""
    text = """
import torch
def save(pause, file):
    torch.save(1, file)
    pause(5)
    torch.save(1, file)
"""
    module = ModuleType("torch.distributed.checkpoint.state_dict_saver")
    exec(compile(text, str(Path(torch.__file__).parent / "saver.py"), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    run.hooks.remove()
    run.hooks = ActivityHooks(run.log)
    train(model, optimizer, 5)
    vars(module)["save"](run.ms, io.BytesIO())
    assert run.shares() == {"training_steps": 50, "checkpointing": 5}
    assert [place["count"] for place in run.facts()["places"]] == [1]


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_blocks_without_gradients(run: Run, model: Any, optimizer: Any, block: Any) -> None:
    def main() -> None:
        for _ in range(3):
            for _ in range(5):
                with block():
                    model(BATCH)
                run.ms(1)
            train(model, optimizer, 10)

    main()
    assert run.shares() == {"rollout": 57, "training_steps": 300, "start_up": 1, "other": 2}


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("hook", ["begin", "note"])
def test_an_interrupt_in_a_hook_of_a_block_does_not_leave_gradients_off(
    run: Run, model: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch, block: Any, hook: str
) -> None:
    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    train(model, optimizer, 1)
    with monkeypatch.context() as patch:
        patch.setattr(run.log, hook, interrupted)
        with pytest.raises(KeyboardInterrupt), block():
            run.ms(1)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    train(model, optimizer, 1)
    assert run.facts()["steps"] == 2


def test_training_is_seen_after_an_interrupt_as_saving_begins(
    run: Run, model: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    train(model, optimizer, 1)
    with monkeypatch.context() as patch:
        patch.setattr(run.hooks, "_range", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.save({}, io.BytesIO())
    train(model, optimizer, 1)
    assert run.facts()["steps"] == 2


def test_inference_mode_that_is_off_is_no_evaluation(run: Run, model: Any, optimizer: Any) -> None:
    for _ in range(5):
        with torch.inference_mode(False):
            train(model, optimizer, 10)
    assert run.shares() == {"training_steps": 500}


def test_what_torch_does_without_gradients_itself(run: Run, model: Any, optimizer: Any) -> None:
    for _ in range(20):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        train(model, optimizer, 1)
    assert run.shares() == {"training_steps": 200}
    assert run.facts()["places"] == []


def test_an_error_in_a_block_or_a_step_does_no_harm(run: Run, model: Any, optimizer: Any) -> None:
    def failing() -> None:
        raise KeyError("here")

    train(model, optimizer, 5)
    with pytest.raises(KeyError, match="here"), torch.no_grad():
        failing()
    with pytest.raises(KeyError, match="here"):
        optimizer.step(failing)
    with pytest.raises(RuntimeError, match="grad"):
        torch.zeros(()).backward()
    train(model, optimizer, 5)
    assert run.shares() == {"training_steps": 102}
    assert run.facts()["steps"] == 10


def test_data_loaders(run: Run, model: Any, optimizer: Any) -> None:
    class Data(Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            run.ms(1)
            return BATCH[0]

    def main() -> None:
        for _ in range(3):
            for batch in DataLoader(Data()):
                optimizer.zero_grad()
                model(batch).backward()
                optimizer.step()
            with torch.no_grad():
                for batch in DataLoader(Data()):
                    model(batch)
            run.ms(7)

    main()
    assert run.facts()["data_loading_ns"] == 27e6
    assert run.shares() == {"data_preparation": 3, "training_steps": 327, "evaluation": 120, "other": 21}


def test_other_threads_do_not_count(run: Run, model: Any, optimizer: Any) -> None:
    train(model, optimizer, 5)
    thread = threading.Thread(target=lambda: (validate(model), train(model, optimizer, 1)))
    thread.start()
    thread.join()
    train(model, optimizer, 5)
    facts = run.facts()
    assert facts["steps"] == 10
    assert facts["places"] == []
    assert facts["stages_ns"]["other"] == 4 * 3e6 + 10e6


def test_modules_imported_later(
    run: Run, model: Any, optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for `safetensors.torch`; `from … import` gets the watched function, too."""
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text("def save_file(run):\n    run.ms(11)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    run.hooks.remove()
    run.hooks = ActivityHooks(run.log)
    from safetensors.torch import save_file

    train(model, optimizer, 5)
    save_file(run)
    assert run.shares() == {"training_steps": 50, "checkpointing": 11}


def test_functions_that_were_imported_before_under_other_names(
    model: Any, optimizer: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a package that re-exports them, and by the program."""

    def save(run: Run) -> None:
        run.ms(11)

    for name in ("torch.distributed.checkpoint.state_dict_saver", "torch.distributed.checkpoint", "program"):
        module: Any = ModuleType(name)
        module.save = save
        monkeypatch.setitem(sys.modules, name, module)
    run.hooks.remove()
    run.hooks = ActivityHooks(run.log)
    train(model, optimizer, 5)
    module.save(run)
    assert run.shares() == {"training_steps": 50, "checkpointing": 11}
    run.hooks.remove()
    assert module.save is save


def scripted(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def patched() -> dict[str, Any]:
    return {
        "save": torch.save,
        "serialization.save": torch.serialization.save,
        "train": nn.Module.train,
        "enter": torch.no_grad.__enter__,
        "exit": torch.no_grad.__exit__,
        "inference": torch.inference_mode.__enter__,
        "next": dataloader._BaseDataLoaderIter.__next__,
        "backward": torch.autograd._engine_run_backward,
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_the_program_finds_what_it_knows() -> None:
    before = patched()
    hooks = ActivityHooks(ActivityLog())
    try:
        for name, ours in patched().items():
            assert ours is not before[name], name
            assert inspect.signature(ours) == inspect.signature(before[name])
            assert inspect.getsource(ours) == inspect.getsource(before[name])
            assert (ours.__name__, ours.__qualname__, ours.__module__, ours.__doc__) == (
                before[name].__name__,
                before[name].__qualname__,
                before[name].__module__,
                before[name].__doc__,
            )
        assert torch.save is torch.serialization.save
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
        assert torch.equal(torch.jit.script(scripted)(BATCH), BATCH * 2)
        model = nn.Linear(2, 2)
        assert model.eval() is model
        assert not model.training
        assert not torch.compile(scripted, backend="eager", fullgraph=True)(BATCH).requires_grad
    finally:
        hooks.remove()
    assert patched() == before


def test_compiled_training_is_not_recompiled(run: Run) -> None:
    counts: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        counts.append(1)
        return graph.forward

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def loss_of(x: Any) -> Any:
        with torch.no_grad():
            x = x * 2
        return model(x).sum()

    for _ in range(4):
        loss_of(BATCH).backward()
        optimizer.step()
    assert len(counts) == 1
    assert run.facts()["steps"] == 4


def trainings(run: Run) -> list[tuple[int, int]]:
    """The number of the first optimizer of each training, and its steps."""
    return [(one["first_optimizer"], one["steps"]) for one in run.facts()["trainings"]]


def test_an_optimizer_where_another_one_was_is_a_training_of_its_own(run: Run) -> None:
    """A sweep: Python gives the next optimizer the id of the last."""
    for _ in range(3):
        model = Model(run)
        train(model, Optimizer(run, model), steps=10)
    assert trainings(run) == [(1, 10), (2, 10), (3, 10)]
    found = run.facts()["trainings"]
    assert {(one["class"], one["function"]) for one in found} == {("Optimizer", "train")}


def test_optimizers_that_are_each_made_for_a_few_steps_are_one_training(run: Run) -> None:
    """Clients of federated learning, however many; what is known of them does not grow."""
    model = Model(run)
    for _ in range(100):
        train(model, Optimizer(run, model), steps=2)
    assert trainings(run) == [(1, 200)]
    assert len(run.log.optimizers) == 1
    assert len(run.log.activities) <= 3


def test_optimizers_of_one_line_that_live_on_step_in_turns(run: Run) -> None:
    model = Model(run)
    optimizers = [Optimizer(run, model) for _ in range(3)]
    for _ in range(5):
        for optimizer in optimizers:
            train(model, optimizer, steps=1)
    assert trainings(run) == [(1, 5)]
    assert [one.count for one in run.log.optimizers] == [5, 5, 5]


class Late(Exception):
    """Of a signal handler of the program."""


@pytest.mark.parametrize("first", range(3))
def test_training_goes_on_whatever_instruction_of_ours_a_signal_handler_interrupts(first: int) -> None:
    """Here one of nine of those that the hooks execute; it raises, once."""
    for at in itertools.count(first, 9):
        run = Run()
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        left = at

        def interrupt(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if "run_shares" in frame.f_code.co_filename:
                frame.f_trace_opcodes, left = True, left - (event == "opcode")
                if left < 0:
                    raise Late
            return interrupt

        before = sys.gettrace()
        with suppress(Late):
            sys.settrace(interrupt)
            train_and_count(run, model, optimizer)
        sys.settrace(before)
        torch.set_grad_enabled(True)  # as without hooks, where a handler raises before a block has ended
        train_and_count(run, model, optimizer)
        run.hooks.remove()
        if left >= 0:
            return


def train_and_count(run: Run, model: Any, optimizer: Any) -> None:
    for _ in range(2):
        with torch.no_grad():
            model(BATCH)
        model(BATCH).sum().backward()
        optimizer.step()
    run.log.count_noted()
