"""Modules told by a model tree alone. Each operator is written with its module, as `relu@act`.

`@` alone is the root (path ``), `-` no module. A row in is what must come out.
"""

import re

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.backward import plain
from stepscope.facts.annotate.modules.matching.roles import role_of
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def tree(kind, **children):
    """A node of a model tree; a child is a node, or just its class."""
    nodes = [tree(child) if isinstance(child, str) else child for child in children.values()]
    named = [{**node, "name": name} for name, node in zip(children, nodes, strict=True)]
    return {"name": "", "class": kind, "children": named}


def blocks(*nodes):
    return tree("ModuleList", **{str(number): node for number, node in enumerate(nodes)})


def drawn(forward, backward=()):
    """A trace of steps, each a row of forward operators and one of backward nodes."""
    lines, time = [], 0
    for number, row in enumerate(forward):
        start, nodes = time, backward[number].split() if backward else ["NllLossBackward0@-"]
        for operator in row.split():
            name, _, options = operator.partition("@")[0].partition("|")
            lines.append(f"main | {time + 1} {time + 9} | aten::{name} | {options}".rstrip("| "))
            time += 10
        for operator in nodes:
            name = operator.partition("@")[0]
            lines.append(f"main | {time + 1} {time + 9} | {name}")
            time += 10
        lines.append(f"main | {start} {time} | ProfilerStep#{number}")
        time += 10
    return drawn_trace("\n".join(lines))


def modules_of(trace):
    """`name@path` of every operator, in order."""
    events, paths = trace.events, [*trace["modules"].text("path"), "-"]
    rows = [row for row in range(len(events)) if events.text("category")[row] == "cpu_op"]
    names = [(events.text("name")[row] or "").removeprefix("aten::") for row in rows]
    return [f"{name}@{paths[events['module'][row]]}" for name, row in zip(names, rows, strict=True)]


def matched(model, *forward):
    """What becomes of the forward rows, without what closes each step."""
    found = modules_of(annotate(drawn(forward), model))
    return " ".join(name for name in found if not name.startswith("NllLoss"))


MLP = tree("MLP", fc1="Linear", act="ReLU", fc2="Linear")
RESIDUAL = tree("Residual", conv1="Conv2d", bn1="BatchNorm2d", relu="ReLU", conv2="Conv2d", bn2="BatchNorm2d")
DOWN = tree("Sequential", norm="ChannelNorm", conv="Conv2d")
STAGE = tree("Stage", conv="Conv2d", norm="LayerNorm", fc="Linear")
STAGE_RUNS = "conv2d@stages.{0}.conv layer_norm@stages.{0}.norm linear@stages.{0}.fc"
LATE_NORMS = tree("Block", mix="Conv2d", norm1="MyNorm", fc="Linear", norm2="MyNorm")
NORM = "to@{0} pow@{0} mean@{0} rsqrt@{0} mul@{0}"


@pytest.mark.parametrize(
    ("model", "row"),
    [
        pytest.param(
            tree("Net", conv="Conv2d", bn="BatchNorm2d", act="ReLU", fc="Linear"),
            "conv2d@conv add_@bn batch_norm@bn relu_@act flatten@ linear@fc",
            id="a chain; the counter of batches is the norm's, what is between is the root's",
        ),
        pytest.param(
            tree("Net", a="Linear", b="Linear", c="Linear"),
            "linear@a linear@b linear@c",
            id="leaves of one name get one operator each",
        ),
        pytest.param(
            tree("Net", blocks=blocks(MLP, MLP)),
            "linear@blocks.0.fc1 relu@blocks.0.act linear@blocks.0.fc2 "
            "linear@blocks.1.fc1 relu@blocks.1.act linear@blocks.1.fc2",
            id="so do blocks of one shape",
        ),
        pytest.param(
            tree("Net", a="Linear", drop="Dropout", norm="LayerNorm", b="Linear"),
            "linear@a layer_norm@norm linear@b",
            id="a leaf that runs nothing derails nothing",
        ),
        pytest.param(
            tree("Net", body=MLP, pooler=tree("Pooler", dense="Linear"), head="LayerNorm"),
            "linear@body.fc1 relu@body.act linear@body.fc2 layer_norm@head",
            id="nor does a block that is not called",
        ),
        pytest.param(
            tree("Net", stem="ReLU", layer=blocks(RESIDUAL, RESIDUAL), fc="Linear"),
            "relu@stem "
            "conv2d@layer.0.conv1 batch_norm@layer.0.bn1 relu_@layer.0.relu "
            "conv2d@layer.0.conv2 batch_norm@layer.0.bn2 add@layer.0 relu_@layer.0.relu "
            "conv2d@layer.1.conv1 batch_norm@layer.1.bn1 relu_@layer.1.relu "
            "conv2d@layer.1.conv2 batch_norm@layer.1.bn2 add@layer.1 relu_@layer.1.relu "
            "linear@fc",
            id="a shared leaf is called twice in its own block; the residual add is the block's",
        ),
        pytest.param(
            tree(
                "Net",
                h=blocks(tree("B", n="LayerNorm", fc="Linear"), tree("B", n="LayerNorm", fc="Linear")),
                ln_f="LayerNorm",
            ),
            "layer_norm@h.0.n linear@h.0.fc add@h.0 layer_norm@h.1.n linear@h.1.fc add@h.1 layer_norm@ln_f",
            id="the last block ends like the others",
        ),
        pytest.param(
            tree("Net", head="Linear", norm="LayerNorm", embed="Embedding"),
            "embedding@embed layer_norm@norm linear@head",
            id="children are called in another order than registered",
        ),
        pytest.param(
            tree(
                "Decoder",
                layers=blocks(
                    *[
                        tree(
                            "Layer",
                            attn=tree("Attn", q="Linear", o="Linear"),
                            mlp=MLP,
                            n1="LayerNorm",
                            n2="LayerNorm",
                        )
                    ]
                    * 2
                ),
                norm="LayerNorm",
            ),
            "layer_norm@layers.0.n1 linear@layers.0.attn.q linear@layers.0.attn.o "
            "layer_norm@layers.0.n2 linear@layers.0.mlp.fc1 relu@layers.0.mlp.act "
            "linear@layers.0.mlp.fc2 "
            "layer_norm@layers.1.n1 linear@layers.1.attn.q linear@layers.1.attn.o "
            "layer_norm@layers.1.n2 linear@layers.1.mlp.fc1 relu@layers.1.mlp.act "
            "linear@layers.1.mlp.fc2 layer_norm@norm",
            id="in layers too: the first norm is not the final one",
        ),
        pytest.param(
            MLP,
            "linear@fc1 relu@act linear@fc2 linear@fc1 relu@act linear@fc2 linear@fc1 relu@act linear@fc2",
            id="a model is called several times in a step, as for gradients that add up",
        ),
        pytest.param(
            tree(
                "Net",
                h=blocks(
                    *[tree("A", fc="Linear", n="LayerNorm"), tree("B", conv="Conv2d", n="LayerNorm")] * 2
                ),
                norm="LayerNorm",
            ),
            "layer_norm@h.0.n linear@h.0.fc layer_norm@h.1.n conv2d@h.1.conv "
            "layer_norm@h.2.n linear@h.2.fc layer_norm@h.3.n conv2d@h.3.conv layer_norm@norm",
            id="norms that all blocks register last run first in all of them",
        ),
        pytest.param(
            tree("Net", attn=tree("SelfAttention", q="Linear", k="Linear", v="Linear"), out="Linear"),
            "linear@attn.q view@attn linear@attn.k linear@attn.v matmul@attn softmax@attn "
            "matmul@attn reshape@attn linear@out",
            id="scores run by function belong to the attention",
        ),
        pytest.param(
            tree(
                "Net",
                attn=tree("MultiheadAttention", out_proj="NonDynamicallyQuantizableLinear"),
                norm="LayerNorm",
                fc="Linear",
            ),
            "linear@attn scaled_dot_product_attention@attn linear@attn add@ layer_norm@norm linear@fc",
            id="MultiheadAttention runs its projections by function",
        ),
        pytest.param(
            tree("Net", first="LlamaRMSNorm", fc="Linear", second="LlamaRMSNorm", head="Linear"),
            f"embedding@ {NORM.format('first')} linear@fc add@ {NORM.format('second')} linear@head",
            id="a leaf of several operators claims those that each of its calls has around it",
        ),
        pytest.param(
            tree("Net", a="Linear", b="Dropout", c="Dropout", d="Linear"),
            "linear@a dropout@ linear@d",
            id="where one of two alike is called, neither is guessed",
        ),
        pytest.param(
            tree("Net", a="Linear", odd="FourierMixing", b="Linear"),
            "linear@a fft_fft2@ real@ linear@b",
            id="a class that nothing tells leaves its operators to the block around",
        ),
        pytest.param(
            tree("Net", a="Linear", act="Hardswish", up="PixelShuffle"),
            "linear@a hardswish_@act pixel_shuffle@up",
            id="a class that the table does not know is told by its own name",
        ),
        pytest.param(
            tree("Net", a="Linear"), "linear@a log_softmax@- nll_loss_nd@-", id="the loss is no module's"
        ),
        pytest.param(
            tree("Net", a="Linear", criterion="CrossEntropyLoss"),
            "linear@a cross_entropy_loss@criterion",
            id="unless one of the tree computes it",
        ),
        pytest.param(
            tree("Net", down=blocks(DOWN, DOWN), stages=blocks(STAGE, STAGE, STAGE)),
            f"{STAGE_RUNS.format(0)} layer_norm@down.0.norm conv2d@down.0.conv {STAGE_RUNS.format(1)} "
            f"layer_norm@down.1.norm conv2d@down.1.conv {STAGE_RUNS.format(2)}",
            id="lists of about one length may run in turn, whatever is registered first",
        ),
        pytest.param(
            tree("Net", blocks=blocks(LATE_NORMS, LATE_NORMS), norm="MyNorm", head="Linear"),
            " ".join(
                f"layer_norm@blocks.{n}.norm1 conv2d@blocks.{n}.mix layer_norm@blocks.{n}.norm2 "
                f"linear@blocks.{n}.fc"
                for n in range(2)
            )
            + " layer_norm@norm linear@head",
            id="norms registered after what they run before, of a class of the user's own",
        ),
        pytest.param(
            tree("Net", encoder="GRU", cell="GRUCell", out="Linear"),
            "gru@encoder gru_cell@cell gru_cell@cell linear@out",
            id="a cell is no recurrent layer",
        ),
        pytest.param(
            tree("Pair", body=tree("Sequential", fc="Linear"), head=tree("Sequential", fc="Linear")),
            "linear@body.fc sub@ abs@ linear@head.fc",
            id="containers run nothing between them",
        ),
        pytest.param(
            tree("Net", head="Linear", body="Linear", skip="Identity"),
            "linear@head gelu@ linear@body",
            id="Identity runs nothing; operators without a module stay where they are",
        ),
    ],
)
def test_each_operator_goes_to_its_module(model, row):
    assert matched(model, row) == row


def test_steps_are_matched_each_by_itself():
    rows = "linear@fc1 relu@act linear@fc2", "linear@fc1 linear@fc2"

    trace = annotate(drawn(rows), MLP)

    assert matched(MLP, *rows) == " ".join(rows)
    calls = dict(zip(trace["modules"].text("path"), trace["modules"]["calls"].tolist(), strict=True))
    assert calls == {"": 2, "fc1": 2, "act": 1, "fc2": 2}
    assert set(trace["modules"].text("evidence")) == {"matched"}


def test_backward_follows_forward_by_names_where_nothing_else_links_it():
    trace = annotate(
        drawn_trace("""
            main     |   0 200 | ProfilerStep#0
            main     |   1   9 | aten::randn
            main     |  11  19 | aten::linear
            main     |  12  13 | aten::t
            main     |  14  18 | aten::addmm
            main     |  15  16 | aten::expand
            main     |  21  29 | aten::tanh
            main     |  31  39 | aten::mul
            main     |  41  49 | aten::linear
            main     |  42  43 | aten::t
            main     |  44  48 | aten::mm
            autograd |  51  59 | autograd::engine::evaluate_function: MmBackward0
            autograd |  61  69 | TBackward0
            autograd |  71  79 | torch::autograd::AccumulateGrad
            autograd |  81  89 | TanhBackward0
            autograd |  91  99 | AddmmBackward0
            autograd | 101 109 | TBackward0
        """),
        tree("Net", fc1="Linear", act="Tanh", fc2="Linear"),
    )

    names, origin = trace.events.text("name"), trace.events["forward_event"]
    links = {names[row]: int(origin[row]) for row in range(len(origin)) if origin[row] >= 0}
    assert {name.rpartition(" ")[2]: names[row] for name, row in links.items()} == {
        "MmBackward0": "aten::mm",
        "TanhBackward0": "aten::tanh",
        "AddmmBackward0": "aten::addmm",
        "TBackward0": "aten::t",
    }
    found = [text.rpartition(" ")[2] for text in modules_of(trace)[-6:]]
    assert found == [
        *("MmBackward0@fc2", "TBackward0@fc2", "torch::autograd::AccumulateGrad@fc2"),
        *("TanhBackward0@act", "AddmmBackward0@fc1", "TBackward0@fc1"),
    ]
    assert trace.events.text("stage")[1] == "other"  # what no gradient returns to is no forward


def test_backward_follows_forward_where_sequence_numbers_link_it():
    trace = annotate(
        drawn_trace("""
            main     |  0 90 | ProfilerStep#0
            main     |  1  9 | aten::linear    | seq=1
            main     | 11 19 | aten::relu      | seq=2
            main     | 21 29 | aten::linear    | seq=3
            autograd | 41 49 | PowBackward0    | seq=3 fwd=1
            autograd | 51 59 | AddmmBackward0  | seq=2 fwd=1
            autograd | 61 69 | AddmmBackward0  | seq=1 fwd=1
        """),
        MLP,
    )

    assert modules_of(trace)[3:] == ["PowBackward0@fc2", "AddmmBackward0@act", "AddmmBackward0@fc1"]


def test_recomputed_operators_belong_to_those_they_repeat():
    trace = annotate(
        drawn_trace("""
            main     |   0 200 | ProfilerStep#0
            main     |   1   9 | aten::linear   | seq=1
            main     |  11  19 | aten::relu     | seq=2
            main     |  21  29 | aten::linear   | seq=3
            autograd |  41  49 | AddmmBackward0 | seq=3 fwd=1
            autograd |  50  99 | ReluBackward0  | seq=2 fwd=1
            autograd |  61  69 | aten::linear   | seq=1
            autograd |  71  79 | aten::relu     | seq=2
            autograd |  81  98 | aten::threshold_backward
            autograd | 101 109 | AddmmBackward0 | seq=1 fwd=1
        """),
        MLP,
    )

    again = [path for path, mark in zip(modules_of(trace), _of_operators(trace), strict=True) if mark]
    assert again == ["linear@fc1", "relu@act"]
    assert modules_of(trace)[:3] == ["linear@fc1", "relu@act", "linear@fc2"]
    assert trace["modules"]["calls"].tolist() == [1, 1, 1, 1]


def _of_operators(trace):
    return trace.events["recompute"][trace.events.text("category").mask("cpu_op")].tolist()


def test_an_operator_that_says_nothing_is_told_by_its_kernel():
    trace = annotate(
        drawn_trace("""
            main     |  0 90 | ProfilerStep#0
            main     |  1  9 | aten::relu         | seq=1
            main     | 11 19 | MyExtension        | seq=2
            main     | 12 14 | cudaLaunchKernel   | corr=1
            main     | 41 49 | ReluBackward0      | seq=1 fwd=1
            stream 7 | 15 19 | ampere_sgemm_64x64 | corr=1
        """),
        tree("Net", fc="Linear", act="ReLU"),
    )

    assert modules_of(trace)[:2] == ["relu@act", "MyExtension@fc"]
    kernel = int(trace["launches"]["device_event"][0])
    assert trace["modules"].text("path")[int(trace.events["module"][kernel])] == "fc"


def test_leaves_are_told_apart_by_their_parameters_where_shapes_are_recorded(monkeypatch):
    model = tree("Net", down="Linear", up="Linear")
    for node, count in zip(model["children"], (3 * 8, 8 * 3 + 8), strict=True):
        node["parameters"] = count
    trace = drawn(["linear linear"])
    first, second = (trace.events["name"] == trace.events["name"][1]).nonzero()[0].tolist()
    shapes = {first: [[2, 3], [8, 3], [8]], second: [[2, 8], [3, 8], []]}
    monkeypatch.setattr(Trace, "event_arguments", lambda trace, event: {"Input Dims": shapes.get(event, [])})

    assert modules_of(annotate(trace, model))[:2] == ["linear@up", "linear@down"]


@pytest.mark.parametrize("model", [{}, {"roots": []}])
def test_without_a_tree_there_are_no_modules(model):
    trace = annotate(drawn(["linear relu"]), model)

    assert len(trace["modules"]) == 0
    assert (trace.events["module"] == -1).all()


def test_a_tree_that_nothing_matches_claims_nothing():
    assert matched(tree("Net", conv="Conv2d"), "sin@- cos@-") == "sin@- cos@-"


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("Conv2d", "aten::conv2d", True),
        ("Conv2d", "autograd::engine::evaluate_function: ConvolutionBackward0", True),
        ("BatchNorm2d", "NativeBatchNormBackward0", True),
        ("BatchNorm2d", "aten::conv2d", False),
        ("SyncBatchNorm", "aten::batch_norm", True),
        ("NoisyLinear", "aten::linear", True),
        ("LeakyReLU", "aten::leaky_relu_", True),
        ("ReLU", "aten::leaky_relu", False),
        ("ELU", "aten::relu", False),
        ("GELUActivation", "GeluBackward0", True),
        ("ChannelNorm", "aten::layer_norm", True),
        ("GRU", "aten::gru_cell", False),
        ("LSTMCell", "aten::lstm_cell", True),
        ("LSTM", "MkldnnRnnLayerBackward0", True),
        ("T5LayerNorm", "aten::layer_norm", False),
        ("Gated", "my::gated_sum", True),
        ("Gate", "my::gate_sum", False),  # a shorter name is part of others
        ("Identity", "aten::linear", False),
    ],
)
def test_classes_are_told_by_operators(kind, name, told):
    assert bool(re.search(role_of(kind).whole, plain(name))) is told
