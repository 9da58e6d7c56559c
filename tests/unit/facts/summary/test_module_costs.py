"""The model tree, folded."""

from __future__ import annotations

from typing import Any

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import ModuleNode
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace


def node(name: str, kind: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "class": kind, "parameters": 1, "children": list(children)}


def tree(model: dict[str, Any], *calls: str) -> list[ModuleNode]:
    """The tree of a forward in which each path of `calls` takes 10 us."""
    lines = ["main | 0 1000 | ProfilerStep#1", "main | 0 900 | stepscope.module:"]
    for index, path in enumerate(calls):
        start = 10 + 20 * index
        lines.append(f"main | {start} {start + 10} | stepscope.module: {path}")
    return summarize(annotate(drawn_trace("\n".join(lines), model=model))).modules


def shown(nodes: list[ModuleNode]) -> list[tuple[Any, ...]]:
    return [(one.name, one.count, one.forward_cpu_ms, shown(one.children)) for one in nodes]


BLOCK = node("0", "Block", node("fc", "Linear"))


def blocks(count: int) -> list[dict[str, Any]]:
    return [{**BLOCK, "name": str(index)} for index in range(count)]


def test_numbered_copies_of_one_block_fold_and_so_do_their_children() -> None:
    model = node("gpt", "GPT", node("h", "ModuleList", *blocks(3)))
    (root,) = tree(model, "h.0.fc", "h.1.fc", "h.2.fc")
    (stack,) = root.children
    assert shown(stack.children) == [("0 … 2", 3, 0.03, [("fc", 3, 0.03, [])])]
    assert stack.children[0].spread_ms == (0.01, 0.01)
    assert stack.children[0].path == "h.0"


def test_two_copies_stay_apart() -> None:
    (root,) = tree(node("net", "Net", *blocks(2)), "0.fc", "1.fc")
    assert [one.name for one in root.children] == ["0", "1"]


def test_numbered_modules_that_differ_inside_stay_apart() -> None:
    wide = node("1", "Block", node("fc", "Linear"), node("norm", "LayerNorm"))
    model = node("net", "Net", BLOCK, wide, {**BLOCK, "name": "2"})
    (root,) = tree(model, "0.fc")
    assert [one.name for one in root.children] == ["0", "1", "2"]


def test_numbered_leaves_and_named_layers_stay_apart() -> None:
    leaves = [node(str(index), "Linear") for index in range(4)]
    named = [{**BLOCK, "name": f"layer{index}"} for index in range(4)]
    (root,) = tree(node("net", "Net", *leaves, *named), "0")
    assert [one.name for one in root.children] == [
        *(str(index) for index in range(4)),
        *(f"layer{index}" for index in range(4)),
    ]


def test_calls_are_a_steps_however_many_steps_are_looked_at() -> None:
    steps = "".join(
        f"main | {at} {at + 100} | ProfilerStep#{at // 100}\nmain | {at + 1} {at + 90} | stepscope.module:\n"
        for at in (0, 100, 200)
    )
    trace = annotate(drawn_trace(steps, model=node("net", "Net")))
    assert [summarize(trace, step=step).modules[0].calls for step in (None, 1)] == [1, 1]


def test_models_that_do_not_run_in_the_steps_are_not_counted() -> None:
    """A copy that a trainer replaced: its layers would count twice."""
    models = {
        "roots": [{**node(name, "Net", node("fc", "Linear")), "path": name} for name in ("first", "second")]
    }
    trace = drawn_trace(
        """
        main | 0 1000 | ProfilerStep#1
        main | 0  900 | stepscope.module: second
        main | 9   99 | stepscope.module: second.fc
        """,
        model=models,
    )
    summary = summarize(annotate(trace))
    assert [one.name for one in summary.modules] == ["second"]
    assert (summary.parameters, summary.parameter_bytes) == (1, None)  # the tree does not say how large
