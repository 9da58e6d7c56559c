"""Model trees: paths, roots, shared modules, wrappers, and the ranges of calls."""

import copy
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry, build_tree, describe_registry


class Encoder(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return x


class Translator(nn.Module):
    """Both halves share one embedding."""

    def __init__(self):
        super().__init__()
        embedding = nn.Embedding(10, 4)
        self.encoder = Encoder(embedding)
        self.decoder = Encoder(embedding)

    def forward(self, words):
        return self.encoder(words) + self.decoder(words)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        raise KeyboardInterrupt


WORDS = torch.tensor([1, 2])


@pytest.fixture
def registry():
    """The trees of what the test calls, while its calls are ranges."""
    registry = ModuleRegistry()
    ranges = ModuleRanges(registry)
    ranges.install()
    yield registry
    ranges.remove()


def paths_called(action):
    """The module ranges that `action` leaves in a trace, in order."""
    with torch.profiler.profile() as profiler:
        action()
    events = profiler.profiler.kineto_results.events()
    ranges = [e for e in events if e.name().startswith("stepscope.module: ")]
    ranges.sort(key=lambda e: (e.start_ns(), -e.duration_ns()))
    return [e.name().removeprefix("stepscope.module: ") for e in ranges]


def test_paths_are_those_of_state_dict():
    model = Translator()

    paths = {node.path for node in build_tree(model, "model").walk()}

    assert {key.rpartition(".")[0] for key in model.state_dict()} <= paths


def test_a_shared_module_is_told_apart_by_its_caller(registry):
    model = Translator()

    assert paths_called(lambda: model(WORDS)) == [
        "",
        "encoder",
        "encoder.embedding",
        "encoder.layers.0",
        "encoder.layers.1",
        "decoder",
        "decoder.embedding",
        "decoder.layers.0",
        "decoder.layers.1",
    ]


def test_several_models_are_named_by_the_variables_that_hold_them(registry):
    class Game:
        def __init__(self):
            self.generator = nn.Linear(2, 2)

        def play(self, critic):
            return critic(self.generator(torch.ones(1, 2)))

    Game().play(nn.Linear(2, 1))
    registry.refresh()

    assert [(root.name, root.path) for root in registry.roots] == [
        ("generator", "generator"),
        ("critic", "critic"),
    ]


def test_a_loss_beside_the_model_is_a_root_that_adds_no_prefix(registry):
    model = nn.Sequential(nn.Linear(2, 2))
    for _ in range(3):
        nn.MSELoss()(model(torch.ones(1, 2)), torch.ones(1, 2))
    registry.refresh()

    assert [(root.name, root.path) for root in registry.roots] == [("model", ""), ("MSELoss", "MSELoss")]
    assert paths_called(lambda: nn.MSELoss()(model(torch.ones(1, 2)), torch.ones(1, 2))) == [
        "",
        "0",
        "MSELoss",
    ]


def test_a_part_called_first_is_not_a_root_of_its_own(registry):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0](torch.ones(1, 2))
    model(torch.ones(1, 2))
    registry.refresh()

    assert [root.name for root in registry.roots] == ["model"]
    assert paths_called(lambda: model[0](torch.ones(1, 2))) == ["0"]


def test_a_wrapper_and_what_it_wraps_are_one_range(registry):
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    wrapped(torch.ones(1, 2))
    registry.refresh()

    assert paths_called(lambda: wrapped(torch.ones(1, 2))) == ["", "0"]
    assert registry.roots[0].module is model


def test_a_model_first_seen_while_recording_leaves_the_others_their_paths(registry):
    model, later = nn.Linear(2, 2), nn.Linear(2, 2)
    model(torch.ones(1, 2))
    registry.refresh()

    called = paths_called(lambda: later(model(torch.ones(1, 2))))

    assert called == ["", "later"]


def test_modules_made_during_a_call_have_no_range(registry):
    class Lazy(nn.Module):
        def forward(self, x):
            return nn.Softmax(dim=-1)(x)

    model = Lazy()

    assert paths_called(lambda: model(torch.ones(1, 2))) == ["Lazy"]


def test_each_thread_has_its_own_calls(registry):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            worker = threading.Thread(target=other, args=(x,))
            worker.start()
            worker.join()
            return self.inner(x)

    other = nn.Linear(2, 2)
    Outer()(torch.ones(1, 2))

    assert [root.module for root in registry.roots][1] is other


def test_an_interrupted_call_ends_its_ranges(registry):
    model, after = nn.Sequential(Failing()), nn.Linear(2, 2)

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        after(torch.ones(1, 2))

    interrupted()
    registry.refresh()

    assert paths_called(interrupted) == ["model", "model.0", "after"]


def test_removing_the_ranges_leaves_torch_as_it_was():
    before = nn.Module.__call__
    ranges = ModuleRanges(ModuleRegistry())
    ranges.install()
    assert nn.Module.__call__ is not before

    ranges.remove()

    assert nn.Module.__call__ is before


def test_only_one_set_of_ranges_is_at_work(registry):
    model = nn.Linear(2, 2)
    second = ModuleRanges(ModuleRegistry())
    second.install()

    assert paths_called(lambda: model(torch.ones(1, 2))) == [""]
    second.remove()


def test_a_module_registered_below_itself_ends():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].back = model

    assert [node.path for node in build_tree(model, "model").walk()] == ["", "0"]


def test_a_description_counts_each_shared_parameter_once(registry):
    model = Translator()
    model(WORDS)

    (root,) = describe_registry(registry)["roots"]
    (encoder, decoder) = root["children"]

    assert root["parameters"] == sum(p.numel() for p in model.parameters()) == 40 + 4 * 20
    assert root["parameter_bytes"] == 4 * root["parameters"]
    assert encoder["parameters"] == decoder["parameters"] == 80
    assert root["class"].endswith("Translator")
    assert root["file"] == encoder["call_file"] == __file__
    lines = Path(__file__).read_text().splitlines()
    assert lines[root["line"] - 1] == "class Translator(nn.Module):"
    assert "self.encoder(words)" in lines[encoder["call_line"] - 1]


def test_large_trees_are_fine():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(2000)))
    registry = ModuleRegistry()
    registry.add_root(model, "model")

    (root,) = describe_registry(registry)["roots"]

    assert len(root["children"]) == 2000
    assert root["parameters"] == 4000


def test_a_call_goes_on_when_the_callers_objects_misbehave():
    class Awkward:
        def __init__(self):
            self.held = [nn.Linear(2, 2)]

        @property
        def __dict__(self):
            raise TypeError("not for you")

        def run(self):
            return self.held[0](torch.ones(1, 2))

    ranges = ModuleRanges(ModuleRegistry())
    ranges.install()
    try:
        assert Awkward().run().shape == (1, 2)
    finally:
        ranges.remove()
    assert "TypeError" in ranges.failure


class Autoencoder(nn.Module):
    """A model that is trained by methods other than `forward`."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def encode(self, x):
        return self.encoder(x)

    def training_loss(self, x):
        return (self.decoder(self.encode(x)) - x).square().mean()


def test_methods_other_than_forward_keep_the_names_of_modules(registry):
    autoencoder = Autoencoder()

    assert paths_called(lambda: autoencoder.training_loss(torch.ones(4))) == ["encoder", "decoder"]
    assert [type(root.module) for root in registry.roots] == [Autoencoder]


def test_a_forward_that_is_called_itself_keeps_the_names_of_modules(registry):
    model = Translator()

    assert "encoder.layers.0" in paths_called(lambda: model.forward(WORDS))


def test_a_model_held_by_another_object_keeps_its_own_name(registry):
    class Trainer:
        def __init__(self):
            self.model = Autoencoder()

        def run(self):
            self.model.encode(torch.ones(4))

    Trainer().run()

    assert [root.name for root in registry.roots] == ["model"]


def test_other_libraries_may_use_the_name_modules_for_something_else(registry):
    class Net:
        """As skorch's, which is no module."""

        def __init__(self):
            self._modules = ["model"]
            self.model = nn.Linear(2, 2)

        def infer(self):
            return self.model(torch.ones(1, 2))

    Net().infer()

    assert [root.name for root in registry.roots] == ["model"]


def test_a_class_that_a_function_made_has_the_name_that_it_was_given(registry):
    """As Pyro's modules: `PyroLinear`, made by a function that calls it `result`."""

    def made(base):
        class Result(base):
            pass

        Result.__name__ = f"My{base.__name__}"
        return Result

    made(nn.Linear)(2, 2)(torch.ones(1, 2))

    (root,) = describe_registry(registry)["roots"]
    assert root["class"].rpartition(".")[2] == "MyLinear"


def paths(registry):
    """Of all nodes that a call may mean."""
    registry.refresh()
    return [node.path for root in registry.roots for node in root.walk()]


@pytest.mark.parametrize("container", [nn.ModuleDict, dict])
def test_parts_of_a_container_that_is_never_called_are_named_by_it(registry, container):
    trunk = nn.Linear(2, 2)
    heads = container({"seg": nn.Linear(2, 2), "depth": nn.Linear(2, 1)})
    for name in ("seg", "depth"):
        heads[name](trunk(torch.ones(1, 2)))

    assert {"trunk", "heads.seg", "heads.depth"} <= set(paths(registry))


@pytest.mark.parametrize(
    ("container", "expected"), [(nn.ModuleList, ["0", "1", "2"]), (list, ["layer", "layers.1", "layers.2"])]
)
def test_the_layers_of_a_loop_are_named_by_their_places(registry, container, expected):
    layers = container([nn.Linear(2, 2) for _ in range(3)])
    x = torch.ones(1, 2)
    for _ in range(2):
        for layer in layers:
            x = layer(x)

    assert [path for path in paths(registry) if path] == expected


def test_parts_of_a_model_that_only_the_script_calls_are_named_by_it(registry):
    class Learner:
        def __init__(self):
            self.model = Translator()

        def train(self):
            self.model.encoder.layers[0](torch.ones(4))
            return self.model.decoder(WORDS)

    Learner().train()

    assert {"encoder.layers.0", "decoder", "decoder.layers.1"} <= set(paths(registry))


def test_a_module_that_has_seen_no_input_has_no_parameters_yet(registry):
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "lazy": nn.LazyLinear(2)})
    registry.add_root(model, "model")
    (root,) = describe_registry(registry)["roots"]
    assert {one["name"]: (one["parameters"], one["parameter_bytes"]) for one in root["children"]} == {
        "used": (6, 24),
        "lazy": (0, 0),
    }


def test_a_copy_takes_the_place_of_the_one_before_it(registry):
    """As of a model for each task, of which nothing is kept once it is gone."""
    model, copies = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), weakref.WeakSet()
    model(torch.ones(1, 2))
    for _ in range(5):
        learner = copy.deepcopy(model)
        copies.add(learner)
        learner(torch.ones(1, 2))
    first = learner
    learner = copy.deepcopy(model)
    learner(torch.ones(1, 2))
    registry.refresh()
    assert len(copies) == 1
    assert [root.name for root in registry.roots] == ["model", "learner", "learner_2"]
    assert paths_called(lambda: (first(torch.ones(1, 2)), learner(torch.ones(1, 2)))) == [
        "learner",
        "learner.0",
        "learner.1",
        "learner_2",
        "learner_2.0",
        "learner_2.1",
    ]
