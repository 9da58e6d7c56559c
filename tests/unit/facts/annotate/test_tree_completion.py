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
