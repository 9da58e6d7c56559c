"""Blocks of a model tree that differ from their equals in some leaves. `?` is a supplied leaf."""

import pytest

from stepscope.facts.annotate.module_evidence import tree_modules
from stepscope.facts.annotate.modules.matching.completion import complete

KINDS = {"c": "Conv2d", "n": "BatchNorm2d", "a": "ReLU", "l": "Linear", "x": "Custom"}


def tree(*blocks):
    """A tree of blocks; each letter is a leaf."""
    children = [
        {
            "name": str(number),
            "class": "Block",
            "children": [
                {"name": f"{leaf}_{number}_{place}", "class": KINDS[leaf], "children": []}
                for place, leaf in enumerate(block)
            ],
        }
        for number, block in enumerate(blocks)
    ]
    return tree_modules({"name": "", "class": "Net", "children": children})


def completed(*blocks):
    """The leaves of each block, those that belong to the block itself with `?`."""
    letter = {kind: short for short, kind in KINDS.items()}
    result = complete(tree(*blocks))
    rows = {}
    for module, own in zip(result.modules, result.own.tolist(), strict=True):
        if module.kind == "Block":
            rows[result.modules.index(module)] = ""
        elif module.parent in rows:
            rows[module.parent] += letter[module.kind] + "?" * (not own)
    return list(rows.values())


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("cnacn", "cnacn"),
        ("cacn", "cn?acn"),
        ("nacn", "c?nacn"),
        ("ccnacn", "ccnacn"),
        ("ncacn", "cnacn"),
        ("cxacn", "cxacn"),
        ("", "c?n?a?c?n?"),
        ("l", "l"),
    ],
)
def test_a_block_unlike_its_equals(block, expected):
    assert completed("cnacn", "cnacn", block, "cnacn")[2] == expected


def test_which_of_equal_neighbors_is_missing_is_unknown():
    assert completed("llla", "llla", "lla", "llla")[2] == "l?l?l?a"


def test_blocks_that_differ_as_often_as_not_differ_on_purpose():
    blocks = ["cnacn", "cnan", "cnacn", "cnan", "cnacn", "cnan"]
    assert completed(*blocks) == blocks


def test_doubled_leaves_are_doubted():
    result = complete(tree("cna", "cna", "cnna", "cna"))
    assert [result.modules[index].name for index in sorted(result.doubtful)] == ["n_2_2"]


@pytest.mark.parametrize(
    ("blocks", "last"),
    [
        (["cna", "cn"], "cn"),  # two are too few
        (["cna", "cna", "cn"], "cna?"),
        (["cna"] * 4 + ["cn"] * 2, "cn"),  # half as often: on purpose
        (["cna"] * 5 + ["cn"] * 2, "cna?"),
        (["cna", "cn", "ca"], "ca"),  # none is usual
        (["cna", "cna", "c"], "cn?a?"),  # half of both in common
        (["cna", "cna", "cx"], "cx"),
        (["cna", "cna", "cnx"], "cnx"),
        (["cna", "cna", "cnax"], "cnax"),
        (["cna", "cna", "acn"], "cna"),  # in the usual order
        (["cnl", "cnl", "cnnl"], "cnnl"),
        (["llla", "llla", "lla"], "l?l?l?a"),
    ],
)
def test_what_is_usual_among_blocks(blocks, last):
    assert completed(*blocks)[-1] == last


def test_origins_of_leaves_are_themselves_or_their_block():
    given = tree("cna", "cna", "cn")
    result = complete(given)
    assert result.modules[-1].kind == "ReLU"
    block = next(number for number, module in enumerate(given) if module.name == "2")
    assert (result.origin.tolist()[-1], result.own.tolist()[-1]) == (block, False)
    assert result.origin.tolist()[:-1] == list(range(len(given)))
    assert result.own.tolist()[:-1] == [True] * len(given)
    assert result.doubtful == {len(given)}
    parents = [
        result.modules[module.parent].name if module.parent >= 0 else None for module in result.modules
    ]
    assert parents == [None, "", *["0"] * 3, "", *["1"] * 3, "", *["2"] * 3]
