"""What torch.compile does, in collected contexts: regions, compilations, why they come again."""

import re
from pathlib import Path

import pytest
import torch
from collected import Collected
from torch import nn

import stepscope
from stepscope.analyze import RULES, RuleContext, apply_rules

HERE = Path(__file__)


def scaled(x):
    return torch.sin(x) * 2


def twice(x):
    halves = torch.sin(x)
    torch._dynamo.graph_break()
    return halves * 2


def line_of(text):
    """The number of the first line of this file that contains `text`."""
    return next(n for n, line in enumerate(HERE.read_text().splitlines(), 1) if text in line)


def collect(work, tmp_path):
    torch.compiler.reset()
    path = tmp_path / "run.stepscope"
    with stepscope.record_contexts(path):
        work()
    return Collected.read(path)


def compiled(run, pattern):
    """Contexts of the compiler's by name, and how often they ran."""
    found = [c for c in run.of_kind("annotation") if re.search(pattern, c.name)]
    return {c.name: sum(d.count for d in found if d.name == c.name) for c in found}


def test_a_region_is_named_after_its_function_and_stands_below_its_caller(tmp_path):
    region = torch.compile(scaled, backend="eager")

    def work():
        for _ in range(3):
            region(torch.ones(4))  # the call of the region

    run = collect(work, tmp_path)
    (context,) = [c for c in run.of_kind("annotation") if c.name == "compiled region scaled"]
    assert (context.file, context.line, context.count) == (str(HERE), line_of("def scaled"), 3)
    assert context.parent.line == line_of("# the call of the region")
    assert {"aten::sin", "aten::mul"} <= {c.name for c in context.below()}
    assert sum(c.count for c in context.below() if c.name == "aten::sin") == 3


def test_frames_of_the_compiler_are_left_out(tmp_path):
    run = collect(lambda: torch.compile(scaled, backend="aot_eager")(torch.ones(4)), tmp_path)
    assert run.named("aten::sin")
    frames = [c.file for c in run.of_kind("python")]
    assert frames
    assert not [one for one in frames if re.search("_dynamo|_functorch|_inductor|eval_with", one)]


def test_a_compilation_is_one_context_with_all_that_it_runs(tmp_path):
    region = torch.compile(scaled, backend="eager")

    def work():
        for _ in range(3):
            region(torch.ones(4))  # where it is compiled

    run = collect(work, tmp_path)
    (context,) = [c for c in run.contexts if c.name == "compilation of scaled"]
    assert (context.file, context.line) == (str(HERE), line_of("def scaled"))
    assert context.parent.line == line_of("# where it is compiled")
    assert context.count == 1
    assert context.cpu_ns > 0
    assert context.children == []
    assert run.counts()["aten::sin"] == 3  # that of tracing is not among them


def test_what_follows_a_graph_break_is_told_apart(tmp_path):
    run = collect(lambda: torch.compile(twice, backend="eager")(torch.ones(4)), tmp_path)
    assert compiled(run, "^compiled region") == {
        "compiled region twice": 1,
        "compiled region twice after a graph break": 1,
    }


def test_compiling_again_is_counted_by_its_reason(tmp_path):
    region = torch.compile(scaled, backend="eager", dynamic=False)
    run = collect(lambda: [region(torch.ones(size)) for size in (2, 3, 4, 5, 5)], tmp_path)
    found = compiled(run, "^compilation of scaled")
    assert found.pop("compilation of scaled") == 1
    ((reason, count),) = found.items()
    assert count == 3
    assert re.fullmatch(r"compilation of scaled, again: .*size mismatch at index 0.*", reason)
    assert "expected #, actual #" in reason


def test_a_compilation_that_fails_leaves_the_rest_counted(tmp_path):
    def fails(graph, inputs):
        raise RuntimeError("no")

    def work():
        with pytest.raises(Exception, match="no"):
            torch.compile(scaled, backend=fails)(torch.ones(4))
        torch.cos(torch.ones(4))

    run = collect(work, tmp_path)
    assert run.counts()["aten::cos"] == 1
    assert "compilation of scaled" in run.counts()


def test_torch_is_left_as_it_was(tmp_path):
    handler = torch._dynamo.callback.callback_handler
    before = dict(vars(handler))
    collect(lambda: torch.compile(scaled, backend="eager")(torch.ones(4)), tmp_path)
    assert vars(handler) == before


# -- the rule


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def trained(tmp_path, sizes, dynamic, net=Net):
    """What the analyzer finds in the contexts of a training with batches of some sizes."""
    net = net()
    model = torch.compile(net, backend="aot_eager", dynamic=dynamic)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def work():
        for size in sizes:
            model(torch.ones(size, 8)).sum().backward()  # the call of the model
            optimizer.step()
            optimizer.zero_grad()

    collect(work, tmp_path)
    context = RuleContext(stepscope.open(tmp_path / "run.stepscope"))
    return [one for one in apply_rules(context, RULES) if one.rule == "recompilation"]


def test_functions_compiled_again_and_again_are_a_finding_with_line_and_reason(tmp_path):
    (finding,) = trained(tmp_path, range(2, 8), dynamic=False)
    assert finding.what.startswith("torch.compile recompiled 5 times, ")
    assert "size mismatch at index 0" in finding.what
    assert finding.gain.ms > 0
    place = finding.evidence[0]
    assert place.name.startswith("compilation of forward, again")
    assert (place.file, place.line) == (str(HERE), line_of("def forward"))


def test_a_module_of_torch_is_told_by_the_line_that_calls_it(tmp_path):
    (finding,) = trained(tmp_path, range(2, 8), False, lambda: nn.Linear(8, 8))
    assert finding.evidence[0].name.startswith("compilation of (torch), again")
    assert finding.evidence[0].line == line_of("# the call of the model")


@pytest.mark.parametrize(("sizes", "dynamic"), [([4] * 5, None), (range(2, 8), True)])
def test_functions_compiled_once_are_none(tmp_path, sizes, dynamic):
    assert trained(tmp_path, sizes, dynamic) == []


def test_that_a_size_varies_is_learnt_by_compiling_again_once(tmp_path):
    assert trained(tmp_path, range(2, 8), dynamic=None) == []
