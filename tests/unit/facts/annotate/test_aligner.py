"""Operators aligned with the leaves of a tree, part by part: orders, moves, loops, roles and calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_matching import MLP, blocks, tree

from stepscope.facts.annotate.module_evidence import Module, tree_modules
from stepscope.facts.annotate.modules.matching import alignment
from stepscope.facts.annotate.modules.matching.alignment import Aligner
from stepscope.facts.annotate.modules.matching.matching import MatchedCalls, owners
from stepscope.facts.annotate.modules.matching.roles import (
    ONE_OPERATOR,
    ModuleShape,
    Roles,
    role_around,
    role_of,
    roles_of,
    root_shape,
)

NAMES = {
    "l": "linear",
    "c": "conv2d",
    "n": "layer_norm",
    "a": "relu",
    "d": "dropout",
    "x": "sin",
    "m": "matmul",
}
Node = dict[str, Any]


class Model:
    """The shapes of a tree, and the operators of a row of letters."""

    def __init__(self, node: Node) -> None:
        self.modules = tree_modules(node)
        self.roles = Roles(self.modules, NAMES.values())
        self.root = root_shape(self.modules, self.roles)

    def path(self, part: ModuleShape) -> str:
        return self.modules[part.module].path if part.module >= 0 else "*"

    def tokens(self, row: str) -> list[int]:
        return [self.roles.bits_of(NAMES[letter]) for letter in row]

    def explained(self, row: str) -> list[str]:
        """The leaf of each operator that is explained."""
        aligner = Aligner(self.root, self.roles.sure, self.roles.all_sizes)
        return [f"{row[one.row]}@{self.path(one.path[-1])}" for one in aligner.explain(self.tokens(row))]

    def calls(self, row: str) -> list[str]:
        """The path of each call, in order."""
        aligner = Aligner(self.root, self.roles.sure, self.roles.all_sizes)
        owned = aligner.explain(self.tokens(row))
        found = MatchedCalls.of(self.root, owned, len(row), [module.kind for module in self.modules])
        return [self.modules[module].path if module >= 0 else "*" for module in found.module]


A, B, C = tree("A", fc="Linear"), tree("B", conv="Conv2d"), tree("C", n="LayerNorm")
LISTS = tree("Net", down=blocks(A, A), up=blocks(B, B, B))
NESTED = tree("Net", a=blocks(LISTS, LISTS), b=blocks(C, C))


@pytest.mark.parametrize(
    ("node", "zipped", "paths"),
    [
        (LISTS, False, "down.0.fc down.1.fc up.0.conv up.1.conv up.2.conv"),
        (LISTS, True, "up.0.conv down.0.fc up.1.conv down.1.fc up.2.conv"),
        (
            NESTED,
            True,
            "a.0.up.0.conv a.0.down.0.fc a.0.up.1.conv a.0.down.1.fc a.0.up.2.conv b.0.n "
            "a.1.up.0.conv a.1.down.0.fc a.1.up.1.conv a.1.down.1.fc a.1.up.2.conv b.1.n",
        ),
        (tree("Net", a=blocks(A), b=blocks(B)), True, "a.0.fc b.0.conv"),
        (
            tree("Net", a=blocks(A, A), b=blocks(B, B, B, B)),
            True,
            "a.0.fc a.1.fc b.0.conv b.1.conv b.2.conv b.3.conv",
        ),
        (tree("Net", a=blocks(A), b=blocks(B, B)), True, "b.0.conv a.0.fc b.1.conv"),
        (tree("Net", a=blocks(A, A), s="Linear", b=blocks(B, B)), True, "a.0.fc a.1.fc s b.0.conv b.1.conv"),
        (
            tree("Net", a=tree("Sequential", x=A, y=A), b=blocks(B, B)),
            True,
            "a.x.fc a.y.fc b.0.conv b.1.conv",
        ),
    ],
)
def test_leaves_are_listed_list_after_list_or_in_turn(node: Node, zipped: bool, paths: str) -> None:
    model = Model(node)
    found = list(alignment._leaf_paths(model.root, (), {}, zipped))
    assert [model.path(path[-1]) for path in found] == paths.split()
    assert all(path[0] is model.root and path[1].module == 0 for path in found)


def test_leaves_are_listed_in_another_order_of_children() -> None:
    model = Model(LISTS)
    net = model.root.children[0]
    found = alignment._leaf_paths(model.root, (), {net.kinds: (1, 0)})
    assert [model.path(path[-1]) for path in found][:2] == ["up.0.conv", "up.1.conv"]


@pytest.mark.parametrize(
    ("child", "anchor", "after", "order"),
    [
        (3, 0, False, (1, 0, 3, 2)),
        (0, 1, True, (1, 0, 2, 3)),
        (2, 3, True, (0, 1, 3, 2)),
        (0, 3, False, (1, 0, 2, 3)),
    ],
)
def test_a_moved_child_stays_in_order_with_those_of_its_kind(
    child: int, anchor: int, after: bool, order: tuple[int, ...]
) -> None:
    line, norm = ("Linear", 0), ("LayerNorm", 0)
    kinds = ("Block", 0), (line, norm, line, norm)
    move = alignment._Move(kinds, child, anchor, after)
    assert alignment._moved({}, move) == {kinds: order}
    assert alignment._moved({kinds: (1, 0, 3, 2)}, alignment._Move(kinds, 1, 0, True)) == {
        kinds: (0, 1, 3, 2)
    }


@pytest.mark.parametrize(
    ("kinds", "order"),
    [("lnln", (1, 0, 3, 2)), ("nnl", (0, 1, 2)), ("llnn", (0, 2, 3, 1)), ("", ()), ("ll", (0, 1))],
)
def test_each_norm_moves_in_front_of_the_sibling_before_it(kinds: str, order: tuple[int, ...]) -> None:
    assert alignment._each_ahead([(kind, 0) for kind in kinds], ("n", 0)) == order


def test_leaves_that_are_not_called_are_passed_where_that_is_cheaper() -> None:
    steps = np.full(4, alignment._MATCH, np.int8)
    direct, passed = np.array([5.0, 9, 9, 7]), np.array([0.0, 1, 2, 3])
    found = alignment._past_leaves(direct, passed, np.zeros(4), steps)
    assert found.tolist() == [5, 6, 7, 7]
    assert steps.tolist() == [alignment._MATCH, alignment._LEAF, alignment._LEAF, alignment._MATCH]
    dearer = alignment._past_leaves(direct, passed, np.array([0.0, 2, 0, 0]), steps)
    assert dearer.tolist() == [5, 8, 7, 7]


def test_blocks_begin_and_end_with_their_leaves() -> None:
    model = Model(tree("Net", x=MLP, y=tree("Sequential", z=A, act="ReLU"), fc="Linear"))
    found = alignment._blocks(list(alignment._leaf_paths(model.root, (), {})))
    begins = found.begins[found.group].tolist()
    rows = zip(map(model.path, found.parts), begins, found.ends.tolist(), strict=True)
    assert sorted(rows) == [("", 0, 6), ("x", 0, 3), ("y", 3, 5), ("y.z", 3, 4)]
    assert (found.begins.tolist(), found.first.tolist(), found.sizes.tolist()) == ([0, 3], [0, 2], [2, 2])
    alone = Model(tree("Linear"))
    assert len(alignment._blocks(list(alignment._leaf_paths(alone.root, (), {}))).parts) == 1


BLOCK = tree("Block", norm="LayerNorm", fc="Linear", act="ReLU")


@pytest.mark.parametrize(
    ("node", "row", "found"),
    [
        (MLP, "lal", "l@fc1 a@act l@fc2"),
        (MLP, "xlxalx", "l@fc1 a@act l@fc2"),
        (MLP, "ll", "l@fc1 l@fc2"),
        (MLP, "lall", "l@fc1 a@act l@fc1 l@fc2"),
        (MLP, "x", ""),
        (MLP, "", ""),
        (MLP, "lal" * 3, " ".join(["l@fc1 a@act l@fc2"] * 3)),
        (
            tree("Net", first=MLP, second=BLOCK),
            "lal" + "nla" * 4,
            "l@first.fc1 a@first.act l@first.fc2 " + " ".join(["n@second.norm l@second.fc a@second.act"] * 4),
        ),
        (
            tree("Net", first=BLOCK, second=MLP),
            "nla" * 3 + "lal",
            " ".join(["n@first.norm l@first.fc a@first.act"] * 3) + " l@second.fc1 a@second.act l@second.fc2",
        ),
        (
            tree("Net", h=blocks(BLOCK, BLOCK, BLOCK), ln="LayerNorm"),
            "nlanlan",
            "n@h.1.norm l@h.1.fc a@h.1.act n@h.2.norm l@h.2.fc a@h.2.act n@ln",
        ),
        # Norms that are registered after what they run before.
        (
            tree("Net", h=blocks(*[tree("Late", fc="Linear", norm="LayerNorm")] * 3)),
            "nlnlnl",
            "n@h.0.norm l@h.0.fc n@h.1.norm l@h.1.fc n@h.2.norm l@h.2.fc",
        ),
        (
            tree("Net", head="Linear", body=tree("Body", conv="Conv2d", norm="LayerNorm")),
            "cnl",
            "c@body.conv n@body.norm l@head",
        ),
    ],
)
def test_the_cheapest_alignment(node: Node, row: str, found: str) -> None:
    assert Model(node).explained(row) == found.split()


@pytest.mark.parametrize(
    ("node", "row", "calls"),
    [
        (MLP, "lal", "* . fc1 act fc2"),
        (MLP, "lal" * 4, "*" + " . fc1 act fc2" * 4),
        (MLP, "llal", "* . fc1 fc1 act fc2"),
        (
            tree("Net", a=MLP, b=BLOCK),
            "lal" + "nla" * 3,
            "* . a a.fc1 a.act a.fc2" + " b b.norm b.fc b.act" * 3,
        ),
        (tree("Net", fc="Linear", d1="Dropout", d2="Dropout"), "ld", "* . fc"),  # which of the two is unknown
        (tree("Net", fc="Linear", d1="Dropout", d2="Dropout"), "ldd", "* . fc d1 d2"),
    ],
)
def test_calls_are_counted_each_time_that_a_block_runs(node: Node, row: str, calls: str) -> None:
    assert [path or "." for path in Model(node).calls(row)] == calls.split()


def test_an_alignment_takes_no_more_cells_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    late = tree("Net", h=blocks(*[tree("Late", fc="Linear", norm="LayerNorm")] * 3))
    whole = Model(late).explained("nlnlnl")
    monkeypatch.setattr(alignment, "_MOST_CELLS", 36)
    first = Model(late).explained("nlnlnl")  # one alignment, and no move
    assert first
    assert first != whole
    monkeypatch.setattr(alignment, "_MOST_CELLS", 35)
    assert Model(late).explained("nlnlnl") == []


def test_the_next_sequence_begins_with_the_order_of_the_last() -> None:
    model = Model(tree("Net", h=blocks(*[tree("Late", fc="Linear", norm="LayerNorm")] * 3)))
    aligner = Aligner(model.root, model.roles.sure, model.roles.all_sizes)
    aligner.explain(model.tokens("nlnlnl"))
    assert aligner._order
    best = aligner._first(model.tokens("nlnlnl"))
    assert best.cost == pytest.approx(0)


# -- roles

ROLES = """
    Identity LazyIdentity?     |                              |                               | -
    MSELoss Criterion CrossEntropyLoss KLLoss | mseloss crossentropy kldiv |                | -
    RotaryEmbedding RoPE       | applyrotary                  | cos                           | -
    MultiheadAttention ScaledDotProduct | scaleddotproductattention flashattnfwd |          | sure
    ScaleDotProduct FlashAttention Attention | scaleddotproductattention flashattn |         | sure
    LSTMCell GRUCell RNNCell   | lstmcell grucell rnntanhcell |                               | sure
    LSTM GRU RNN RNNBase       | lstm gru rnntanh mkldnnrnnlayer cudnnrnnlayer | cudnnrnn     | sure
    EmbeddingBag               | embeddingbag                 |                               | sure
    Embedding TokenEmbedding   | embedding embeddingdense     | indexselect gather index      | sure
    Conv1D                     |                              | addmm                         | sure
    Linear LazyLinear Dense    | linear addmm taddmm linearbackward | mm matmul sgemmnn nvjet | sure
    Conv2d Convolution         | conv2d convolution           | miopenconv cudnnconv wgrad igemm | sure
    BatchNorm2d                | batchnorm                    | cudnnbn miopenxbn bnfw bnbw   | sure
    InstanceNorm2d             | instancenorm                 | batchnorm                     | sure
    GroupNorm                  | groupnorm                    |                               | sure
    RMSNorm LlamaRMSNorm T5LayerNorm | fusedrmsnorm           | rsqrt                         | sure
    LayerNorm                  | layernorm                    | rsqrt sqrt std var varmean    | sure
    ChannelNorm Norm2d         | batchnorm layernorm groupnorm rmsnorm instancenorm | rsqrt varmean | sure
    DropPath StochasticDepth   | bernoulli                    |                               | -
    Dropout Dropout2d          | nativedropout                | bernoulli                     | -
    GELU                       | gelu                         | tanh erf sigmoid              | -
    ReLU6                      | hardtanh relu6               |                               | -
    SiLU Swish SwishActivation | silu                         | sigmoid                       | -
    AdaptiveAvgPool2d          | adaptiveavgpool2d            | mean                          | -
    MoE Experts SparseMoEBlock | moeforward                   |                               | -
    QuantStub                  | fakequantize                 |                               | -
"""


@pytest.mark.parametrize("line", ROLES.strip().splitlines())
def test_leaves_of_a_class_run_these_operators(line: str) -> None:
    """What is the whole of their forward, and what identifies them where nothing is."""
    classes, whole, part, sure = (field.split() for field in line.split("|"))
    for name in classes:
        role = role_of(name.replace("LazyIdentity?", "Identity"))
        assert role.sure is (sure == ["sure"]), name
        assert [one for one in whole if not re.search(role.whole, one)] == [], name
        assert [one for one in part if not re.search(role.part, one)] == [], name
        assert bool(role.part) is bool(part), name
        assert bool(re.search(role.whole, "")) is (not whole), name
        assert not re.search(role.whole, "sin")
        assert not (role.part and re.search(role.part, "sin"))


def test_operators_next_to_those_of_a_leaf_are_its_own_too() -> None:
    assert re.search(role_of("Linear").trail, "c10d::all_reduce")
    assert re.search(role_of("Embedding").trail, "c10d::all_reduce")
    assert re.search(role_of("BatchNorm1d").lead, "aten::add_")
    assert re.search(role_of("RMSNorm").lead, "aten::empty_like")
    assert not re.search(role_of("Conv2d").trail, "c10d::all_reduce")
    assert not re.search(role_of("LayerNorm").lead, "aten::add_")


def test_branches_run_some_operators_besides_their_children() -> None:
    attention = role_around("SelfAttention")
    assert attention is not None
    assert attention is role_around("MyAttn")
    found = [
        name
        for name in ("flashattn", "softmax", "bmm", "baddbmm", "matmul", "mm")
        if re.search(attention.whole, name)
    ]
    assert found == ["flashattn", "softmax", "bmm", "baddbmm", "matmul"]
    assert role_around("Block") is None
    assert [role.classes for role in roles_of("NonDynamicallyQuantizableLinear")] == [
        role_of("Linear").classes
    ]
    assert len(roles_of("MultiheadAttention")) == 4
    assert [role_of(name).whole for name in ("Abs", "PixelShuffle", "MyLayer")] == [
        "^abs$",
        "pixelshuffle",
        "^my$",
    ]


@pytest.mark.parametrize(
    ("is_one", "classes"),
    [
        (True, "Linear Bilinear LazyLinear Conv2d LazyConvTranspose3d SyncBatchNorm LayerNorm RMSNorm"),
        (True, "Embedding EmbeddingBag Dropout2d ReLU LeakyReLU GELU ReLU6 Softmax Hardswish MaxPool2d"),
        (True, "AdaptiveAvgPool2d LSTM GRUCell Sigmoid Tanh Mish Flatten InstanceNorm2d GroupNorm"),
        (False, "LlamaRMSNorm NoisyLinear Conv1D MyNorm Block MultiheadAttention MaxPool MyEmbedding"),
    ],
)
def test_leaves_of_torch_run_one_operator(is_one: bool, classes: str) -> None:
    assert {name: bool(ONE_OPERATOR.search(name)) for name in classes.split()} == dict.fromkeys(
        classes.split(), is_one
    )


def test_roles_and_sizes_of_a_tree_have_bits() -> None:
    facts = [{"parameters": 24}, {"parameters": 32}, {"parameters": 7}, {}]
    kinds = ["torch.nn.Linear", "Linear", "ReLU", "Linear"]
    modules = [
        Module(str(row), kind=kind, facts=fact)
        for row, (kind, fact) in enumerate(zip(kinds, facts, strict=True))
    ]
    roles = Roles(modules, ["aten::linear", "aten::relu_", "aten::mm"])
    linear, relu = roles.bits_of("aten::linear"), roles.bits_of("aten::relu_")
    assert min(linear, relu) > 0
    assert not linear & relu
    assert roles.bits_of("aten::mm") == roles.bits_of("aten::unknown") == 0  # `linear` is there
    assert roles.sure == linear
    sizes = [roles.size(module) for module in modules]
    assert 0 < sizes[0] != sizes[1] > 0
    assert sizes[2:] == [0, 0]
    assert roles.all_sizes == sizes[0] + sizes[1]
    assert not roles.all_sizes & (linear | relu)
    assert roles.sizes_of(linear, [[2, 3], [8, 3], []]) == sizes[0]
    assert roles.sizes_of(linear, [[8, 3], [8]]) == sizes[0] | sizes[1]  # weight, and with its bias
    assert roles.sizes_of(linear, [["8", 3], [5]]) == roles.sizes_of(relu, [[8, 3]]) == 0
    assert Roles([modules[0]], ["aten::mm"]).bits_of("aten::mm")


# -- operators between calls


@pytest.mark.parametrize(
    ("node", "row", "owned"),
    [
        (MLP, "xlxalx", ". fc1 . act fc2 ."),
        (
            tree("Pair", a=tree("Sequential", fc="Linear"), b=tree("Sequential", fc="Linear")),
            "lxl",
            "a.fc . b.fc",
        ),
        (
            tree("Net", h=blocks(BLOCK, BLOCK)),
            "nlaxnlax",
            "h.0.norm h.0.fc h.0.act h.0 h.1.norm h.1.fc h.1.act h.1",
        ),
    ],
)
def test_what_no_leaf_identifies_is_of_the_call_around(node: Node, row: str, owned: str) -> None:
    model = Model(node)
    aligner = Aligner(model.root, model.roles.sure, model.roles.all_sizes)
    tokens = model.tokens(row)
    positions = [place for place, token in enumerate(tokens) if token]
    found = aligner.explain([tokens[place] for place in positions])
    calls = MatchedCalls.of(model.root, found, len(positions), [module.kind for module in model.modules])
    owner = owners(calls, positions, [f"aten::{NAMES[letter]}" for letter in row])
    paths = [model.modules[calls.module[call]].path if calls.module[call] >= 0 else "-" for call in owner]
    assert [path or "." for path in paths] == owned.split()


def test_a_child_moves_to_where_an_operator_is_left() -> None:
    """Within the innermost block around both neighbors; or, far, within all blocks around."""
    model = Model(
        tree("Net", h=blocks(*[tree("Late", fc="Linear", act="ReLU", norm="LayerNorm")] * 2), ln="LayerNorm")
    )
    paths = list(alignment._leaf_paths(model.root, (), {}))
    by_name = {model.path(path[-1]): path for path in paths}
    token = model.roles.bits_of("layer_norm")
    before, after = by_name["h.0.fc"], by_name["h.0.act"]

    def moves(is_far: bool) -> set[tuple[str, int, int, bool]]:
        found = alignment._moves(token, 0, before, after, is_far)
        return {(move.kinds[0][0], move.child, move.anchor, move.after) for move in found}

    near = moves(False)
    assert near == {("Late", 2, 1, False)}
    assert moves(True) - near >= {("Net", 1, 0, True), ("Net", 1, 0, False)}
    assert list(alignment._moves(model.roles.bits_of("conv2d"), 0, before, after, True)) == []


def test_only_the_innermost_of_several_blocks_is_near() -> None:
    late = tree("Late", fc="Linear", act="ReLU", norm="LayerNorm")
    model = Model(tree("Net", outer=tree("Outer", late=late, ln="LayerNorm")))
    by_name = {model.path(path[-1]): path for path in alignment._leaf_paths(model.root, (), {})}
    token, leaves = (
        model.roles.bits_of("layer_norm"),
        [by_name[f"outer.late.{name}"] for name in ("fc", "act")],
    )
    for is_far, names in ((False, ["Late"]), (True, ["Outer", "Late", "Outer", "Late"])):
        moves = alignment._moves(token, 0, *leaves, is_far)
        assert [move.kinds[0][0] for move in moves] == names


@pytest.mark.parametrize("count", [2, 3])
def test_an_order_costs_the_less_the_more_blocks_have_it(count: int) -> None:
    late = [tree("Late", fc="Linear", act="ReLU", norm="LayerNorm")] * count
    model = Model(tree("Net", h=blocks(*late), g=tree("Also", fc="Linear", norm="LayerNorm")))
    by_name = {model.path(path[-1]): path for path in alignment._leaf_paths(model.root, (), {})}
    token, leaves = model.roles.bits_of("layer_norm"), [by_name[f"h.0.{name}"] for name in ("fc", "act")]
    moves = list(alignment._moves(token, 0, *leaves, False))
    orders = list(Aligner(model.root, model.roles.sure, model.roles.all_sizes)._orders(moves))
    assert [list(order.values()) for order, _ in orders] == [[(0, 2, 1)], [(2, 0, 1)], [(0, 2, 1)]]
    assert [cost for _, cost in orders] == [0.25 / count] * 3


def test_operators_of_a_branch_cost_nothing_next_to_its_leaves() -> None:
    model = Model(tree("Net", attn=tree("SelfAttention", q="Linear", k="Linear"), out="Linear"))
    aligner = Aligner(model.root, model.roles.sure, model.roles.all_sizes)
    best = aligner._first(model.tokens("lmml"))
    product, skip = best._of(model.tokens("m")[0])
    assert np.isinf(product).all()
    assert (skip == 0).tolist() == [True, True, True, False]
    match, skip = best._of(model.tokens("l")[0])
    assert match.tolist() == [0, 0, 0]
    assert (skip > 0).all()
    assert model.explained("lmml") == ["l@attn.q", "m@attn", "m@attn", "l@attn.k"]
