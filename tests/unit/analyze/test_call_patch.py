"""Advice for an object that one known call creates comes with the lines to change."""

from __future__ import annotations

import ast
from io import StringIO
from typing import Any

import pytest
from drawn_findings import found
from rich.console import Console

from stepscope.analyze.analysis import Analysis, Heading
from stepscope.analyze.finding import patch_of, with_arguments
from stepscope.analyze.findings_text import print_findings
from stepscope.trace.trace import Metadata

CALL = "torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)"
FUSED = {"foreach": None, "fused": "True"}


def created(call: str = CALL, **changes: Any) -> dict[str, Any]:
    return {
        "what": "optimizer",
        "class": "AdamW",
        "file": "/home/me/train.py",
        "line": 31,
        "call": call,
        "source": f"    optimizer = {call}",
        **changes,
    }


def metadata(*calls: dict[str, Any]) -> Metadata:
    return Metadata(capture={"created": list(calls)})


def test_a_patch_is_the_line_before_and_after() -> None:
    patch = patch_of(metadata(created()), "optimizer", FUSED, "AdamW")
    assert patch is not None
    assert (patch.file, patch.line) == ("/home/me/train.py", 31)
    assert patch.text == (
        f"- optimizer = {CALL}\n+ optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)"
    )


def test_of_a_call_on_several_lines_only_those_that_change_are_shown() -> None:
    call = "AdamW(\n    weights,\n    fused=False,\n)"
    patch = patch_of(metadata(created(call)), "optimizer", {"fused": "True"})
    assert patch is not None
    assert patch.text == "- fused=False,\n+ fused=True,"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("Adam(weights,  # all (of them)\n)", {"fused": "True"}), ("Adam(weights, foreach=(False))", FUSED)],
    ids=["the argument would end in a comment", "a value in parentheses"],
)
def test_a_call_that_cannot_be_changed_stays_as_it_is(call: str, arguments: dict[str, Any]) -> None:
    after = with_arguments(call, arguments)
    keywords = {one.arg for one in ast.parse(after, mode="eval").body.keywords}  # type: ignore[attr-defined]
    assert after == call or keywords == {"fused"}


def test_an_argument_of_several_lines_has_no_patch() -> None:
    call = "AdamW(weights, fused=bool(\n    os.environ))"
    assert patch_of(metadata(created(call)), "optimizer", {"fused": "True"}) is None


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [created(), created(line=40)],
        [created(file="/usr/lib/python3/site-packages/transformers/trainer.py")],
        [created("AdamW(weights, fused=True)")],
        [created("")],
        [created(**{"class": "SGD"})],
    ],
    ids=["unknown", "several", "in a library", "set already", "no source", "another class"],
)
def test_there_is_no_patch_where_it_would_be_a_guess(calls: list[dict[str, Any]]) -> None:
    assert patch_of(metadata(*calls), "optimizer", {"fused": "True"}, "AdamW") is None


ARGUMENTS = ["", "w", "w, lr=1", "(w)", "*w", "**how", "w,", "\n    w,\n    lr=1,\n", "'é', f(1)"]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("extra", ["", "foreach=False", "fused=False", "foreach=1, fused=False"])
def test_only_the_arguments_meant_change(arguments: str, extra: str) -> None:
    between = ", " if arguments.strip() and extra and not arguments.rstrip().endswith(",") else ""
    call = f"SGD({arguments}{between}{extra})"
    before, after = _arguments(call), _arguments(with_arguments(call, FUSED))
    assert after == {**{k: v for k, v in before.items() if k != "foreach"}, "fused": "True"}


def _arguments(call: str) -> dict[str, str]:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    positions = {str(at): ast.unparse(one) for at, one in enumerate(node.args)}
    return positions | {str(one.arg): ast.unparse(one.value) for one in node.keywords}


LOOP = "main | 0 1000 | ProfilerStep#1\nmain | 10 900 | Optimizer.step#AdamW.step\n" + "\n".join(
    f"main | {20 + 20 * i} {36 + 20 * i} | aten::add_" for i in range(40)
)


def test_the_loop_of_an_optimizer_has_one_and_it_is_printed() -> None:
    finding = found("optimizer_loop", LOOP, capture={"created": [created()]})
    assert finding is not None
    assert finding.patch is not None
    out = StringIO()
    print_findings(Console(file=out, width=200), Analysis(Heading("x", 1), (finding,)))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    at = lines.index("/home/me/train.py:31")
    assert "\n".join(lines[at + 1 : at + 3]) == finding.patch.text
    assert finding.to_json()["patch"]["after"].endswith("fused=True)")
