"""Python's import machinery is left out of sampled and traced trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from test_build_contexts import drawn, tree_of

from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.contexts import with_contexts
from stepscope.facts.contexts.metrics import SampleStats
from stepscope.facts.contexts.node_values import short_label
from stepscope.facts.contexts.prune import without_import_machinery
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.schema import CONTEXTS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

BOOTSTRAP = "<frozen importlib._bootstrap>"
EXTERNAL = "<frozen importlib._bootstrap_external>"
# depth, name, file, line, samples: `train.py` imports net, which imports two others.
SAMPLED = (
    (1, "<module>", "train.py", 3, 0),
    (2, "_find_and_load", BOOTSTRAP, 1176, 1),
    (3, "_find_and_load_unlocked", BOOTSTRAP, 1147, 2),
    (4, "exec_module", EXTERNAL, 940, 3),
    (5, "<module>", "net.py", 1, 10),
    (6, "_find_and_load", BOOTSTRAP, 1176, 4),
    (7, "_load_unlocked", BOOTSTRAP, 690, 0),
    (8, "<module>", "layers.py", 1, 20),
    (6, "_handle_fromlist", BOOTSTRAP, 1230, 5),
    (7, "<module>", "blocks.py", 1, 30),
    (1, "<module>", "train.py", 9, 7),
)


def sampled() -> ContextTree:
    depth = [0, *(row[0] for row in SAMPLED)]
    parent = [
        max((row for row in range(node) if depth[row] < depth[node]), default=-1)
        for node in range(len(depth))
    ]
    nodes = Table(
        CONTEXTS,
        {
            "parent": parent,
            "kind": ["root", *["python"] * len(SAMPLED)],
            "via": Text.of(["call"] * len(depth)),
            "name": ["", *(row[1] for row in SAMPLED)],
            "file": ["", *(row[2] for row in SAMPLED)],
            "line": np.array([-1, *(row[3] for row in SAMPLED)]),
        },
    )
    count = np.array([0, *(row[4] for row in SAMPLED)])
    return ContextTree(
        nodes,
        {"work": SampleStats.of(np.repeat(np.arange(len(depth)), count), np.ones(count.sum()), len(depth))},
    )


def test_an_importing_line_calls_the_module_and_gets_the_time_of_the_machinery() -> None:
    tree = without_import_machinery(sampled())
    found = [
        (
            int(tree.depth[row]),
            tree.label(row),
            tree.nodes.text("file")[row],
            int(tree.metrics["work"].sum[row]),
        )
        for row in range(1, len(tree))
    ]
    assert found == [
        (1, "<module>", "train.py", 6),
        (2, "<module>", "net.py", 19),
        (3, "<module>", "layers.py", 20),
        (3, "<module>", "blocks.py", 30),
        (1, "<module>", "train.py", 7),
    ]


def test_a_tree_without_imports_is_unchanged() -> None:
    tree = without_import_machinery(sampled())
    assert without_import_machinery(tree) is tree


def test_machinery_is_removed_from_recorded_frames_too() -> None:
    tree = tree_of(f"""
        main | 0 100 | ProfilerStep#0
        main | 10 90 | train.py(3): step
        main | 20 80 | {BOOTSTRAP}(1176): _find_and_load | cat=python
        main | 22 78 | {EXTERNAL}(940): exec_module | cat=python
        main | 30 70 | lazy.py(1): <module> | cat=python
    """)
    calls = [line.strip() for line in drawn(tree, "call_ns")]
    assert calls[-2:] == ["step 1x 80 of 80", "<module> 1x 40 of 40"]
    own = [line.strip() for line in drawn(tree)]
    assert own[-2:] == ["step 3x 40 of 80", "<module> 1x 40 of 40"]


def test_findings_in_sql_refer_to_the_nodes_of_the_contexts_table(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["", "<module>", "_find_and_load", "_load_unlocked", "<module>", "aten::sort"]
    files = ["", "train.py", BOOTSTRAP, BOOTSTRAP, "net.py", ""]
    nodes = Table(
        CONTEXTS,
        {
            "parent": [-1, 0, 1, 2, 3, 4],
            "kind": ["root", *["python"] * 4, "operator"],
            "via": Text.of(["call"] * 6),
            "name": names,
            "file": files,
            "line": np.array([-1, 3, 1176, 690, 1, -1]),
        },
    )
    spent = SampleStats.of(np.array([5, 5]), np.array([4e6, 6e6]), 6)
    tree = ContextTree(nodes, {"call_ns": spent, "cpu_ns": spent})
    monkeypatch.setattr("stepscope.facts.load.open", lambda *_, **__: with_contexts(Trace({}), tree))
    sql = "select name from evidence join contexts on contexts.id = evidence.context"
    done = CliRunner().invoke(stepscope, ["query", "run", sql, "--format", "csv"])
    assert done.output.split() == ["name", "aten::sort"]


def test_module_level_lines_are_labeled_by_file_or_package() -> None:
    tree = without_import_machinery(sampled())
    assert short_label(tree, 2) == "net.py:1"
    package = Text.of(["", *["/lib/python3/site-packages/net/__init__.py"] * (len(tree) - 1)])
    tree = replace(tree, nodes=tree.nodes.with_columns(file=package))
    assert short_label(tree, 2) == "net/__init__.py:1"
