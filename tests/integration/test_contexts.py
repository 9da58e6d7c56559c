"""The collector of calling contexts, in the test's own process."""

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from collected import Collected
from torch import nn
from torch.utils.checkpoint import checkpoint

import stepscope
from stepscope.record.contexts.sessions import Collection

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
HERE = Path(__file__)
ENGINE = "autograd::engine::evaluate_function: "


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return self.rest(self.first(x))  # the line of all forward operators


def line_of(text):
    """The number of the line of this file that contains `text` (and is not this call)."""
    lines = HERE.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and "line_of" not in line)


def collect(work, tmp_path, **options):
    path = tmp_path / "run.stepscope"
    with stepscope.record_contexts(path, **options):
        work()
    return Collected.read(path)


def train(model, inputs, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def test_an_operator_stands_under_module_line_and_caller(net, tmp_path):
    def step():
        net(torch.randn(2, 8))  # the call of the model

    run = collect(step, tmp_path)

    (linear,) = [c for c in run.named("aten::linear") if c.parent.parent.name == "first"]
    shown = [(c.kind, c.name) for c in linear.path]
    assert shown[-6:] == [
        ("python", "test_an_operator_stands_under_module_line_and_caller.<locals>.step"),
        ("module", "net"),
        ("python", "Net.forward"),
        ("module", "first"),
        ("python", "Linear.forward"),
        ("operator", "aten::linear"),
    ]
    assert shown[:2] == [("root", ""), ("thread", "main")]
    assert linear.lines(HERE)[-2:] == [
        line_of("# the call of the model"),
        line_of("# the line of all forward operators"),
    ]
    module = linear.path[-5]
    assert module.cls == f"{__name__}.Net"
    assert module.file == str(HERE)


def test_a_context_is_counted_once_for_all_its_calls(net, tmp_path):
    inputs = torch.randn(2, 8)
    run = collect(lambda: [net(inputs) for _ in range(7)], tmp_path)
    addmm = run.named("aten::addmm")
    assert [c.count for c in addmm] == [7, 7]
    for context in addmm:
        row = context.metrics["cpu_ns"]
        assert 0 < row["min"] <= row["sum"] / 7 <= row["max"] < row["sum"]
        assert row["squares"] >= row["sum"] ** 2 / 7 * (1 - 1e-6)


def test_the_same_operators_as_torch_profiler_and_their_time(tmp_path):
    """Both tools watch the same steps; what they disagree on is their own cost."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    inputs = torch.randn(256, 512)
    train(model, inputs)
    ratios = []
    for _ in range(5):
        with torch.profiler.profile() as profiler:
            run = collect(lambda: train(model, inputs, steps=1), tmp_path)
        recorded = profiler.profiler.kineto_results.events()
        assert run.counts() == Counter(e.name() for e in recorded if "[memory]" not in e.name())
        time_ns = 1000 * sum(e.time_range.elapsed_us() for e in profiler.events() if e.cpu_parent is None)
        ratios.append(run.content["totals"]["cpu_ns"] / time_ns)
    # Where others use the machine, it stops either tool between two readings: not in each round.
    assert min(ratios, key=lambda ratio: abs(ratio - 1)) == pytest.approx(1, abs=0.03)


def test_an_operator_takes_no_less_than_what_it_calls(net, tmp_path):
    run = collect(lambda: train(net, torch.randn(2, 8), steps=5), tmp_path)
    assert_children_fit(run)
    assert run.content["totals"]["operators"] == sum(run.counts().values())


def test_the_collector_tells_what_it_took_itself(net, tmp_path):
    """In begin and end of operators; with those operators' times it fills no more than the run."""
    run = collect(lambda: train(net, torch.randn(2, 8), steps=5), tmp_path)
    totals = run.content["totals"]
    assert totals["collector_ns"] > 0
    assert totals["cpu_ns"] + totals["collector_ns"] < run.content["elapsed_ns"]


def assert_children_fit(run):
    for context in run.contexts:
        called = [c for c in context.children if not c.backward]
        if context.count:
            # each row is rounded to a nanosecond
            assert sum(c.cpu_ns for c in called) <= context.cpu_ns + len(called) + 1, context


# -- backward under forward


def assert_linked(run, *files):
    """Every backward operator stands below a forward one, with a line of `files` on the way."""
    totals = run.content["totals"]
    assert totals["backward"] > 0
    assert totals["backward_linked"] == totals["backward"]
    assert run.content["dropped"]["backward_links"] == 0
    linked = [c for c in run.contexts if c.backward]
    assert linked
    for context in linked:
        assert context.parent.kind in ("operator", "annotation"), context
        assert any(context.lines(file) for file in files), context
    graph = [c for c in run.contexts if c.name.startswith(ENGINE) and "Accumulate" not in c.name]
    assert all(any(above.backward for above in c.path) for c in graph)


def test_backward_stands_under_its_forward_line(net, tmp_path):
    run = collect(lambda: train(net, torch.randn(2, 8), steps=3), tmp_path)
    assert_linked(run, HERE)
    for context in run.named(ENGINE + "AddmmBackward0"):
        assert context.backward
        assert context.parent.name == "aten::addmm"
        assert context.count == 3
        assert context.lines(HERE)[-1] == line_of("# the line of all forward operators")


def test_backward_of_an_lstm(tmp_path):
    lstm = nn.LSTM(8, 8, num_layers=2)

    def step():
        lstm(torch.randn(5, 2, 8))[0].sum().backward()

    run = collect(step, tmp_path)
    assert_linked(run, HERE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_backward_of_a_checkpointed_part(net, tmp_path, reentrant):
    def step():
        inputs = torch.randn(2, 8, requires_grad=True)
        checkpoint(net, inputs, use_reentrant=reentrant).sum().backward()

    run = collect(step, tmp_path)
    assert_linked(run, HERE)
    addmm = [c for c in run.named("aten::addmm") if c.path[-2].name == "aten::linear"]
    again = [c for c in addmm if any("Backward" in p.name for p in c.path)]
    assert sum(c.count for c in addmm) == 4
    assert sum(c.count for c in again) == 2  # computed again inside backward


def test_backward_of_a_custom_function(tmp_path):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def step():
        Double.apply(torch.randn(3, requires_grad=True)).sum().backward()

    run = collect(step, tmp_path)
    assert_linked(run, HERE)
    (mul,) = [c for c in run.named("aten::mul") if any(p.backward for p in c.path)]
    assert mul.parent.name.endswith("Double.backward")


def test_backward_in_another_thread_than_forward(net, tmp_path):
    losses = []

    def forward():
        losses.append(net(torch.randn(2, 8)).sum())

    def step():
        threads = [threading.Thread(target=forward) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for loss in losses:
            loss.backward()

    run = collect(step, tmp_path)
    assert_linked(run, HERE)
    backward = run.named(ENGINE + "AddmmBackward0")
    assert {c.path[1].name for c in backward} == {"python"}  # the threads that ran forward
    assert sum(c.count for c in backward) == 4


def test_two_threads_train_at_once(tmp_path):
    def train_one():
        model = Net()
        train(model, torch.randn(2, 8), steps=20)

    def both():
        threads = [threading.Thread(target=train_one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = collect(both, tmp_path)
    assert_linked(run, HERE)
    assert_children_fit(run)
    assert sum(c.count for c in run.named("aten::addmm")) == 2 * 2 * 20


def test_a_graph_larger_than_what_is_remembered_is_linked_from_its_second_step_on(tmp_path):
    def step():
        x = torch.zeros(1, requires_grad=True)
        for _ in range(70_000):
            x = x + 1
        x.backward()

    run = collect(lambda: [step(), step(), step()], tmp_path)
    totals, dropped = run.content["totals"], run.content["dropped"]
    assert 0 < dropped["backward_links"] < 70_000
    assert totals["backward_linked"] + dropped["backward_links"] == totals["backward"] == 210_000


def test_backward_of_gpt2_and_resnet(tmp_path):
    import transformers
    from train_resnet import ResNet18

    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=8,
        n_layer=2,
        n_embd=8,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    gpt2, tokens = transformers.GPT2LMHeadModel(config), torch.randint(50, (1, 8))
    run = collect(lambda: gpt2(input_ids=tokens, labels=tokens).loss.backward(), tmp_path)
    assert_linked(run, transformers.models.gpt2.modeling_gpt2.__file__)
    assert {f"transformer.h.{i}.attn.c_attn" for i in range(2)} <= {c.name for c in run.of_kind("module")}
    resnet, images = ResNet18(width=4), torch.randn(2, 3, 32, 32)
    run = collect(lambda: resnet(images).sum().backward(), tmp_path)
    assert_linked(run, ResNet18.forward.__code__.co_filename, HERE)
    assert len(run.named(ENGINE + "ConvolutionBackward0")) == 20


# -- annotations, exceptions, nesting


def test_what_runs_in_an_annotation_stands_below_it_with_its_own_line(tmp_path):
    def work():
        with torch.profiler.record_function("loading"):
            torch.ones(3)  # inside the annotation

    run = collect(work, tmp_path)
    (loading,) = run.named("loading", "annotation")
    (ones,) = run.named("aten::ones")
    assert loading in ones.path
    assert ones.lines(HERE)[-1] == line_of("# inside the annotation")
    assert_children_fit(run)


def test_annotations_with_a_new_number_each_time_stay_few(tmp_path):
    def work():
        for step in range(200):
            with torch.profiler.record_function(f"ProfilerStep#{step}"):
                torch.ones(3)
            with torch.profiler.record_function(f"batch {step} of 200"):
                pass

    run = collect(work, tmp_path)
    assert [c.count for c in run.named("ProfilerStep#")] == [200]
    batches = [c for c in run.of_kind("annotation") if c.name.startswith("batch")]
    assert len(batches) < 100
    assert sum(c.count for c in batches) == 200


def test_an_exception_passes_and_the_stack_is_right_afterwards(tmp_path):
    def work():
        with torch.profiler.record_function("failing"):
            torch.ones(3) @ torch.ones(4)

    def recovers():
        with pytest.raises(RuntimeError):
            work()
        torch.zeros(3)

    run = collect(recovers, tmp_path)
    (zeros,) = run.named("aten::zeros")
    assert [c.kind for c in zeros.path if c.kind in ("annotation", "operator")] == ["operator"]
    assert_children_fit(run)


def test_a_block_that_raises_leaves_its_file(tmp_path):
    def fails():
        torch.ones(3)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        collect(fails, tmp_path)
    run = Collected.read(tmp_path / "run.stepscope")
    assert run.manifest["outcome"] == "raised"
    assert run.named("aten::ones")
    assert Collection.running is None


def test_an_inner_block_leaves_the_collecting_to_the_outer_one(tmp_path, capsys):
    inner = tmp_path / "inner.stepscope"

    def work():
        with stepscope.record_contexts(inner):
            torch.ones(3)
        torch.zeros(3)

    run = collect(work, tmp_path)
    assert run.named("aten::ones")
    assert run.named("aten::zeros")
    assert not inner.exists()
    assert "collected already" in capsys.readouterr().err


def test_each_block_begins_anew(tmp_path):
    collect(lambda: torch.ones(3), tmp_path)
    run = collect(lambda: torch.zeros(3), tmp_path)
    assert not run.named("aten::ones")
    assert run.named("aten::zeros")


def test_nothing_is_collected_outside(tmp_path):
    torch.ones(3)
    run = collect(lambda: None, tmp_path)
    torch.ones(3)
    assert not run.counts()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # of Python 3.12
def test_a_forked_child_is_clean_and_its_parent_unharmed(net, tmp_path):
    def work():
        net(torch.randn(2, 8))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.ones(3)
                mine = collect(lambda: torch.zeros(3), tmp_path / "child")
                code = 0 if set(mine.counts()) >= {"aten::zeros"} and len(mine.contexts) < 50 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        torch.full((3,), 1.0)

    run = collect(work, tmp_path)
    assert run.named("aten::full")
    assert not run.named("aten::zeros")
    assert len(run.named("aten::addmm")) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # of Python 3.12
def test_data_loader_workers_do_not_disturb(tmp_path):
    data = [torch.full((2,), float(n)) for n in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2)
    seen = []
    run = collect(lambda: seen.extend(loader), tmp_path)
    assert torch.cat(seen).tolist() == torch.stack(data).tolist()
    assert run.content["complete"]


# -- memory and names


def test_no_more_contexts_than_the_limit(net, tmp_path):
    from stepscope.record.contexts.context_options import ContextOptions
    from stepscope.record.manifest import Run
    from stepscope.record.options import RecordOptions
    from stepscope.record.session import Ending

    path = tmp_path / "run.stepscope"
    collection = Collection(Run(["x"], RecordOptions()), path, ContextOptions(limit=40))
    collection.start()
    train(net, torch.randn(2, 8), steps=3)
    collection.close(Ending(), "run")
    run = Collected.read(path)
    assert len(run.contexts) <= 40 + 40 // 8 + 2
    assert run.content["dropped"]["contexts"] > 0
    assert run.named("(others)")
    assert sum(run.counts().values()) == run.content["totals"]["operators"]


def test_code_compiled_in_each_step_is_bounded(tmp_path):
    """Each name is new, or the same: what is kept alive and written does not grow with the steps."""
    import weakref

    alive = weakref.WeakSet()

    def step(name):
        space = {"torch": torch}
        exec(f"def {name}():\n    torch.ones(3)", space)
        alive.add(space[name].__code__)
        space[name]()

    def work():
        for number in range(3000):
            step(f"generated_{number}")
            step("same")

    run = collect(work, tmp_path)
    generated = [c for c in run.of_kind("python") if c.name.startswith("generated_")]
    (same,) = (c for c in run.of_kind("python") if c.name == "same")
    others = [c for c in run.of_kind("python") if c.name == "(others)"]
    assert sum(c.count for c in run.named("aten::ones")) == 6000
    assert [c.count for c in same.children] == [3000]
    assert len(alive) < 1200
    assert len(generated) < 1100
    assert sum(below.count for c in others for below in c.children) == 3000 - len(generated)


def test_models_made_anew_share_their_contexts(tmp_path):
    def sweep():
        for _ in range(3):
            model = Net()
            model(torch.randn(2, 8))
            del model

    run = collect(sweep, tmp_path)
    assert [c.name for c in run.of_kind("module") if c.cls.endswith("Net")] == ["model"]
    assert [c.count for c in run.named("aten::addmm")] == [3, 3]


def test_two_models_are_told_apart_by_their_names(tmp_path):
    critic, generator = Net(), Net()

    def step():
        critic(generator(torch.randn(2, 8)))

    run = collect(step, tmp_path)
    names = {c.name for c in run.of_kind("module")}
    assert {"critic", "generator", "critic.first", "generator.rest.0"} <= names


def test_the_collector_keeps_no_model_alive(tmp_path):
    import weakref

    def work():
        model = Net()
        model(torch.randn(2, 8))
        reference = weakref.ref(model.first)
        del model
        assert reference() is None

    collect(work, tmp_path)
