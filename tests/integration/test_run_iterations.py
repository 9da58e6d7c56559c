"""`stepscope run` on scripts that no optimizer of torch.optim steps, and on some where one does."""

import itertools
import sys

import pytest
import torch
from test_run import Capture, own_words, record, same_with_and_without, start, write
from torch import nn
from torch.utils.data import DataLoader
from warm_python import run_warm

import stepscope
from stepscope.record import profile

NET = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.second(self.first(x).relu())
net = Net()
loader = DataLoader(torch.randn(40, 4), batch_size=4)
"""

EVALUATION = """
net.eval()
with torch.no_grad():
    for batch in loader:
        net(batch).argmax(1)
net.train()
"""

TRAINING = """
for batch in loader:
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
"""

OPTIMIZER = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"


def events_in(capture: Capture, step: dict, prefix: str) -> int:
    end = step["ts"] + step["dur"]
    return len([e for e in capture.named(prefix) if step["ts"] <= e["ts"] < end])


def stages_of(path) -> set[str]:
    trace = stepscope.open(path)
    return {trace["stages"].text("stage")[row] for row in range(len(trace["stages"]))}


def test_inference_is_recorded_by_the_batch_and_notices_nothing(tmp_path):
    write(tmp_path, NET + EVALUATION + "print(net(batch).sum().item(), 'done')", "infer.py")

    done, capture = same_with_and_without(tmp_path, "infer.py")

    assert own_words(done.stderr) == (
        "stepscope: recorded steps 5 to 7; a step is one batch of a DataLoader, until the "
        "next batch is requested; wrote infer.stepscope\n"
        "stepscope: next: stepscope report infer.stepscope\n"
    )
    assert capture.manifest["outcome"] == "complete"
    assert capture.manifest["step_ends_after"] is None
    steps = capture.steps()
    for this, following in itertools.pairwise(steps):
        end = this["ts"] + this["dur"]
        assert end <= following["ts"]
        assert not [e["name"] for e in capture.events if end <= e["ts"] < following["ts"]]
    for step in steps:
        for prefix in ("enumerate(DataLoader)", "stepscope.module: second", "aten::argmax"):
            assert events_in(capture, step, prefix) == 1
    assert [root["path"] for root in capture.roots] == [""]
    assert stages_of(tmp_path / "infer.stepscope") >= {"data_loading", "forward"}


def test_a_model_that_generates_is_recorded_by_its_calls(tmp_path):
    write(
        tmp_path,
        NET
        + """
@torch.no_grad()
def generate(x, length):
    for _ in range(length):
        x = net(x)
    return x
print(generate(torch.ones(1, 4), 20).sum().item())
""",
    )

    done, capture = same_with_and_without(tmp_path, "train.py")

    assert "a step is one call of Net, until the next call" in done.stderr
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert capture.calls("") == 3


@pytest.mark.parametrize("modules", [True, False])
def test_training_by_hand_is_recorded_with_its_update(tmp_path, modules):
    loop = """
for step in range(10):
    loss = ((model(torch.ones(2, 4)) - 1) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= 0.1 * p.grad
            p.grad = None
print(loss.item())
"""
    tensors = "parameters = [torch.randn(4, 4, requires_grad=True)]\n"
    models = {
        True: "model, parameters = net, list(net.parameters())\n",
        False: tensors + "model = lambda x: x @ parameters[0]\n",
    }
    write(tmp_path, NET + models[modules] + loop)

    done, capture = same_with_and_without(tmp_path, "train.py")

    assert "a step is one forward and backward pass, until the next forward pass" in done.stderr
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    for step in capture.steps():
        assert events_in(capture, step, "aten::sub_") == (4 if modules else 1)
        assert events_in(capture, step, "autograd::engine::evaluate_function: MeanBackward0") == 1
    assert {"forward", "backward"} <= stages_of(tmp_path / "train.stepscope")


@pytest.mark.parametrize(
    "script",
    [NET + OPTIMIZER + EVALUATION + TRAINING, NET + EVALUATION + OPTIMIZER + TRAINING],
    ids=["optimizer first", "evaluation first"],
)
def test_training_wins_over_an_evaluation_before_it(tmp_path, script):
    write(tmp_path, script)

    done, capture = same_with_and_without(tmp_path, "train.py")

    assert capture.manifest["step_ends_after"] == "SGD.step"
    assert capture.manifest["step_is"] == "everything from one SGD.step to the next"
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert len(capture.named("Optimizer.step#SGD.step")) == 3
    assert capture.calls("second") == 3
    assert done.stderr.count("wrote") == 1


def test_training_wins_even_where_it_ends_early(tmp_path):
    write(tmp_path, NET + EVALUATION + OPTIMIZER + TRAINING + "    break")

    _, capture = record(tmp_path, "train.py")

    assert capture.manifest["outcome"] == "ended_early"
    assert (capture.manifest["steps_seen"], capture.manifest["steps_recorded"]) == (1, [])


def test_a_script_that_could_train_and_only_evaluates_is_recorded(tmp_path):
    write(tmp_path, NET + OPTIMIZER + EVALUATION)

    _, capture = record(tmp_path, "train.py")

    assert capture.manifest["outcome"] == "ended_early"
    assert capture.manifest["message"].startswith("the run ended after 10 steps; recorded steps 5")
    assert capture.manifest["step_is"].startswith("one batch of a DataLoader")
    assert capture.manifest["warnings"] == []


def test_the_turns_of_a_small_loop_are_kept_where_no_larger_one_comes_round(tmp_path):
    batch = iter(DataLoader(torch.randn(8, 4), batch_size=2))
    net = nn.Linear(4, 4).eval()
    path = tmp_path / "run.stepscope"

    with profile(path=path, warmup=2, steps=2), torch.no_grad():
        x = next(batch)
        for _ in range(6):
            net(x)
    assert Capture.read(path).manifest["step_is"].startswith("one call of Linear")
    assert Capture.read(path).manifest["steps_recorded"] == [2, 3]

    with profile(path=path, warmup=2, steps=2), torch.no_grad():
        for x in DataLoader(torch.randn(16, 4), batch_size=2):
            for _ in range(6):
                net(x)
    capture = Capture.read(path)
    assert capture.manifest["step_is"].startswith("one batch of a DataLoader")
    assert [events_in(capture, step, "aten::linear") for step in capture.steps()] == [6, 6]


def test_a_turn_of_several_models_is_one_step(tmp_path):
    teacher, student = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()
    path = tmp_path / "run.stepscope"

    with profile(path=path, warmup=1, steps=2), torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 4)
            nn.functional.mse_loss(student(x), teacher(x))

    capture = Capture.read(path)
    assert [root["path"] for root in capture.roots] == ["student", "teacher"]
    for step in capture.steps():
        names = [f"stepscope.module: {name}" for name in ("student", "teacher")]
        counts = [events_in(capture, step, name) for name in (*names, "aten::mse_loss")]
        assert counts == [1, 1, 1]


def test_recording_without_warmup_begins_with_the_block(tmp_path):
    net = nn.Linear(4, 4).eval()
    path = tmp_path / "run.stepscope"

    with profile(path=path, warmup=0, steps=2), torch.no_grad():
        for batch in DataLoader(torch.randn(8, 4), batch_size=2):
            net(batch)

    capture = Capture.read(path)
    assert capture.manifest["steps_recorded"] == [0, 1]
    assert [events_in(capture, step, "aten::linear") for step in capture.steps()] == [1, 1]


@pytest.mark.parametrize("start", [start, run_warm], ids=["new process", "compiler imported"])
def test_a_compiled_model_infers_as_without_us(tmp_path, start):
    write(
        tmp_path,
        NET
        + """
graphs = []
def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph
model = torch.compile(net.eval(), backend=backend)
with torch.no_grad():
    for step, batch in enumerate(loader):
        model(batch)
        print(step, graphs, dict(torch._dynamo.utils.counters["frames"]))
""",
    )

    _, capture = same_with_and_without(tmp_path, "train.py", start=start, plain=run_warm)

    assert capture.calls("") == 3
    assert capture.roots[0]["class"] == "__main__.Net"


@pytest.mark.parametrize("batches", [2, -1])
def test_a_sanity_check_of_lightning_is_no_step(tmp_path, batches):
    pytest.importorskip("lightning")
    write(
        tmp_path,
        f"""
        import lightning, torch
        from torch import nn
        from torch.utils.data import DataLoader

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(4, 1)
            def training_step(self, batch, _):
                return self.net(batch).sum()
            def validation_step(self, batch, _):
                self.log("loss", self.net(batch).sum(), batch_size=4)
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        loader = DataLoader(torch.randn(40, 4), batch_size=4)
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps={batches},
        ).fit(Model(), loader, loader)
        """,
    )

    _, capture = record(tmp_path, "train.py")

    assert capture.manifest["outcome"] == "complete"
    assert capture.manifest["step_ends_after"] == "SGD.step"
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert len(capture.named("Optimizer.step#SGD.step")) == 3


DRAWN_CLOCK = """
from stepscope.record.unreplaced import time
clock = [0]
time.perf_counter_ns = lambda: clock[0]
time.thread_time_ns = lambda: clock[0] // 2
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, row):
        clock[0] += 100
        return torch.ones(4)
def infer(x):
    clock[0] += 1000
    return net(x)
net.eval()
loads = torch.utils.data.dataloader._BaseDataLoaderIter
print_hooks = lambda: print(torch.nn.Module.__call__.__module__, loads.__next__.__code__.co_name)
"""


@pytest.mark.parametrize(
    ("loop", "length", "loading"),
    [
        ("for batch in DataLoader(Rows(), batch_size=2):\n    infer(batch)\n", 1200, 200),
        ("x = torch.ones(2, 4)\nfor _ in range(40):\n    x = infer(x)\n", 1000, 0),
    ],
)
def test_unrecorded_iterations_are_timed_too(tmp_path, loop, length, loading):
    write(tmp_path, NET + DRAWN_CLOCK + "print_hooks()\n" + loop + "print_hooks()\n", "infer.py")
    done, capture = record(tmp_path, "infer.py")
    unrecorded, recorded = (capture.manifest[f"{kind}_steps"] for kind in ("unrecorded", "recorded"))
    assert (unrecorded["count"], unrecorded["median_ns"]) == (20, length)
    assert unrecorded["parts"]["data_loading"]["median_ns"] == loading
    assert (recorded["count"], recorded["median_ns"]) == (3, length)
    before, after = done.stdout.splitlines()
    assert before == "stepscope.record.module_ranges watched"
    assert after.startswith("torch.nn.modules.module ")
    assert "watched" not in after


def test_training_that_begins_while_iterations_are_timed_is_recorded(tmp_path):
    evaluation = "net.eval()\nfor _ in range(12):\n    net(torch.ones(2, 4))\nnet.train()\n"
    loop = "for epoch in range(3):\n" + "".join(f"    {line}\n" for line in TRAINING.strip().splitlines())
    write(tmp_path, NET + evaluation + OPTIMIZER + loop, "train.py")
    _, capture = record(tmp_path, "train.py")
    assert capture.manifest["step_ends_after"] == "SGD.step"
    assert capture.manifest["unrecorded_steps"]["count"] == 20


def test_an_optimizer_that_steps_in_hooks_of_gradients_is_recorded(tmp_path):
    write(
        tmp_path,
        NET
        + """
optimizers = {p: torch.optim.AdamW([p]) for p in net.parameters()}
def update(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(update)
for step in range(15):
    loss = ((net(torch.ones(2, 4)) - 1) ** 2).mean()
    loss.backward()
print(loss.item())
""",
    )

    _, capture = same_with_and_without(tmp_path, "train.py")

    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    for step in capture.steps():
        assert events_in(capture, step, "Optimizer.step#AdamW.step") == 4
        assert events_in(capture, step, "autograd::engine::evaluate_function: MeanBackward0") == 1
    assert {"forward", "backward", "optimizer"} <= stages_of(tmp_path / "train.stepscope")


def test_an_optimizer_that_steps_in_a_compiled_function_is_recorded(tmp_path):
    write(
        tmp_path,
        NET
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
@torch.compile(backend="eager")
def update():
    optimizer.step()
for step in range(15):
    loss = ((net(torch.ones(2, 4)) - 1) ** 2).mean()
    loss.backward()
    update()
    optimizer.zero_grad()
print(loss.item())
""",
    )

    plain = run_warm([sys.executable, "train.py"], tmp_path)
    done, capture = record(tmp_path, "train.py")

    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert "a step is one forward and backward pass, until the next forward pass" in done.stderr
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    for step in capture.steps():
        assert events_in(capture, step, "autograd::engine::evaluate_function: MeanBackward0") == 1
    assert {"forward", "backward"} <= stages_of(tmp_path / "train.stepscope")
