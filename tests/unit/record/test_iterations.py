"""Where a loop without optimizer comes round, as seen from outside, and torch left as it was."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, dataloader

from stepscope.record.creations import LoaderWatch
from stepscope.record.iterations import IterationWatch
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry
from stepscope.record.step_detector import Kind, StepDetector


class Watched:
    """A watch with what it needs, and what it said."""

    def __init__(self):
        self.said: list[str] = []
        self.will_train = False
        self.detector = StepDetector()
        self.ranges = ModuleRanges(ModuleRegistry())
        self.loaders = LoaderWatch()
        self.ranges.install()
        self.turns = IterationWatch(
            self.detector, self.ranges, self.loaders, lambda: self.will_train, self.note
        )

    def note(self, thing: object, kind: Kind) -> None:
        self.detector.advance(thing, kind)
        self.said.append(f"{kind.name.lower()} of {type(thing).__name__}")

    def close(self) -> None:
        self.turns.close()
        self.loaders.remove()
        self.ranges.remove()


@pytest.fixture
def watched():
    watched = Watched()
    yield watched
    watched.close()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


X = torch.ones(1, 2)


def test_a_model_that_is_called_again_comes_round(watched):
    net = Net().eval()
    for _ in range(3):
        net(X)

    assert watched.said == ["call of Net"] * 2
    assert watched.detector.is_sure


def test_a_module_without_parameters_is_the_less_sure_sign(watched):
    net, scale = Net().eval(), nn.Softmax(dim=-1)
    for _ in range(2):
        net(scale(X))

    assert watched.said == ["bare_call of Softmax", "call of Net"]


def test_a_loader_that_is_asked_again_comes_round(watched):
    net = Net().eval()
    for batch in DataLoader(torch.ones(6, 2), batch_size=2):
        for _ in range(2):
            net(batch)

    assert watched.said[:3] == ["call of Net", "batch of DataLoading", "call of Net"]
    assert watched.said.count("batch of DataLoading") == 3
    assert watched.detector.boundary.kind is Kind.BATCH


def test_what_is_asked_without_any_model_is_no_turn(watched):
    for batch in DataLoader(torch.ones(6, 2), batch_size=2):
        batch.mean()

    assert watched.said == []


def test_two_loaders_in_step_come_round_once(watched):
    net = Net().eval()
    loaders = [DataLoader(torch.ones(6, 2), batch_size=2) for _ in range(2)]
    for one, other in zip(*loaders, strict=True):
        net(one)
        net(other)

    assert watched.said.count("batch of DataLoading") == 3


def test_while_a_loader_is_kept_a_turn_of_the_model_may_be_part_of_a_larger_one(watched):
    net = Net().eval()
    batches = iter(DataLoader(torch.ones(6, 2), batch_size=2))
    batch = next(batches)
    net(batch)
    net(batch)
    assert not watched.detector.is_sure

    next(batches)
    assert watched.detector.is_sure


def test_a_batch_that_is_used_again_and_again_leaves_the_model(watched):
    net = Net().eval()
    batch = next(iter(DataLoader(torch.ones(6, 2), batch_size=2)))
    net(batch)
    net(batch)

    assert watched.said == ["call of Net"]
    assert watched.detector.is_sure


def test_a_model_inside_a_data_set_is_no_turn(watched):
    class Embedded(Dataset):
        net = Net()

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.net(X).detach()

    assert len(list(DataLoader(Embedded()))) == 4
    assert watched.said == []


def test_training_by_hand_comes_round_with_the_call_after_backward(watched):
    net = Net()
    for _ in range(3):
        loss = net(net(X)).sum()
        loss.backward()
        for p in net.parameters():
            p.data -= 0.1 * p.grad

    assert watched.said.count("backward of BackwardPass") == 2
    assert watched.detector.boundary.kind is Kind.BACKWARD
    assert watched.said[0] == "call of Net"  # in the first turn nobody knows yet


def test_a_model_that_may_be_trained_waits_for_a_backward_pass(watched):
    net = Net()
    net(X)
    net(X)
    assert not watched.detector.is_sure

    net(X).sum().backward()
    net(X)
    assert watched.detector.is_sure


def test_tensors_alone_come_round_with_backward(watched):
    weight = torch.ones(2, requires_grad=True)
    for _ in range(3):
        (weight * X).sum().backward()
        torch.autograd.grad((weight * X).sum(), weight)

    assert watched.said == ["backward of BackwardPass"] * 6


def test_a_layer_computed_again_in_backward_is_no_turn(watched):
    net = Net()
    x = X.clone().requires_grad_()
    for _ in range(2):
        checkpoint(net, x, use_reentrant=False).sum().backward()

    assert watched.said == ["backward of BackwardPass", "call of Net"]


def test_where_an_optimizer_was_made_only_evaluation_is_a_turn(watched):
    watched.will_train = True
    net = Net()
    for _ in range(3):
        net(X).sum().backward()
    assert watched.said == []

    with torch.no_grad():
        net(X)
        net(X)
    assert watched.said == ["call of Net"]


def test_gradients_that_add_up_for_an_optimizer_are_no_turns(watched):
    watched.will_train = True
    net = Net()
    for batch in DataLoader(torch.ones(6, 2), batch_size=2):
        net(batch).sum().backward()

    assert watched.said == []


def test_a_module_that_cannot_be_looked_at_is_called_all_the_same(watched):
    class Odd(Net):
        __hash__ = None

    net = Odd().eval()
    assert [net(X).shape for _ in range(2)] == [(1, 2), (1, 2)]
    assert "unhashable type" in watched.ranges.failure


def test_calls_of_other_threads_are_no_turns(watched):
    net = Net().eval()
    thread = threading.Thread(target=lambda: [net(X) for _ in range(3)])
    thread.start()
    thread.join()

    assert watched.said == []


@pytest.mark.filterwarnings("ignore:.*jit.trace.* is deprecated")
def test_a_call_that_is_being_traced_is_no_turn(watched):
    net = Net().eval()
    for _ in range(2):
        torch.jit.trace(net, X, check_trace=False)

    assert watched.said == []


def test_closing_leaves_torch_as_it_was():
    def state():
        return (
            nn.Module.__call__,
            dataloader._BaseDataLoaderIter.__next__,
            torch.autograd._engine_run_backward,
        )

    before = state()
    watched = Watched()
    assert state() != before
    watched.close()

    assert state() == before


def test_a_backward_pass_that_a_graph_captures_is_none(watched, monkeypatch):
    weight, captures = nn.Parameter(torch.ones(1)), False
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: captures)
    monkeypatch.setattr(torch, "cuda", cuda)
    for captures in (False, True, False):  # noqa: B007, `cuda` looks at it
        weight.sum().backward()
    assert watched.said == ["backward of BackwardPass"] * 2
