"""`stepscope run` on programs that train several models, one after the other."""

import pytest
from test_run import own_words, record, write

SWEEP = """
import gc, time, torch, weakref
from torch import nn
gc.freeze()
def train(width, steps, seconds):
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(seconds)
    return weakref.ref(model[0].weight)
begun = time.perf_counter()
weights = [train(8, 30, 0)]
spent = time.perf_counter() - begun
weights.append(train(16, 30, 0.01 + spent / 15))  # twice as long, however busy the machine is
gc.collect()
print([weight() is None for weight in weights])
"""


def shapes(capture):
    """Weights of the first layer in recorded steps."""
    return {node["children"][0]["parameters"] for node in capture.roots}


def test_the_end_of_a_run_says_that_a_longer_training_was_not_recorded(tmp_path):
    done, capture = record(tmp_path, str(write(tmp_path, SWEEP)))
    assert "the run has 2 trainings, and the recorded steps are of number 1," in done.stderr
    assert "stepscope run --from-optimizer 2" in done.stderr
    found = capture.manifest["run_shares"]["trainings"]
    assert [(one["steps"], one["recorded"]) for one in found] == [(30, True), (30, False)]
    assert shapes(capture) == {4 * 8 + 8}


def test_another_training_is_recorded_by_the_number_of_its_first_optimizer(tmp_path):
    done, capture = record(tmp_path, "--from-optimizer", "2", str(write(tmp_path, SWEEP)))
    assert done.stdout == "[True, True]\n"  # no model of an earlier training is kept
    assert "trainings" not in done.stderr
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    found = capture.manifest["run_shares"]["trainings"]
    assert [one["recorded"] for one in found] == [False, True]
    assert shapes(capture) == {4 * 16 + 16}


@pytest.mark.parametrize("loader", ["", "for _ in torch.utils.data.DataLoader(range(40)): net(x)"])
def test_nothing_is_recorded_where_fewer_optimizers_step(tmp_path, loader):
    calls = f"\nx, net = torch.randn(2, 4), nn.Linear(4, 1)\n{loader}\n"
    script = write(tmp_path, SWEEP + calls)
    done, _ = record(tmp_path, "--from-optimizer", "3", str(script))
    assert done.returncode == 0
    assert own_words(done.stderr).startswith(
        "stepscope: the run ended; 2 optimizers stepped in this process, too few for "
        "--from-optimizer 3; wrote train.stepscope, which holds no step\n"
    )


CLIENTS = """
import copy, torch
from torch import nn
shared = nn.Linear(4, 1)
for round in range(5):
    for client in range(4):
        model = copy.deepcopy(shared)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
"""


def test_steps_of_many_short_trainings_are_counted_on(tmp_path):
    """Federated learning: no client makes as many steps as the warm-up has."""
    done, capture = record(tmp_path, str(write(tmp_path, CLIENTS)))
    assert "warning" not in done.stderr
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert capture.manifest["outcome"] == "complete"
    assert capture.manifest["run_shares"]["steps"] == 60
