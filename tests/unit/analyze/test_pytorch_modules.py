"""Findings about operators that PyTorch's own modules call, drawn: the user cannot change them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text

ATTENTION = "/lib/python3.11/site-packages/torch/nn/modules/activation.py"
TRANSFORMER = "/lib/python3.11/site-packages/torch/nn/modules/transformer.py"
LINEAR = "/lib/python3.11/site-packages/torch/nn/modules/linear.py"
STEP = """
    main | 0 1000 | ProfilerStep#0
    main | 5 40 | stepscope.module: part
    main | 10 30 | aten::{name} | seq=1
    main | 100 900 | autograd::engine::evaluate_function: {node}Backward0 | seq=1 fwd=1
    main | 110 890 | {node}Backward0 | seq=1 fwd=1
"""


def rules_of(name: str, node: str, class_name: str, file: str) -> set[str]:
    """The rules that find something in a step whose module calls one operator."""
    trace = annotate(drawn_trace(STEP.format(name=name, node=node)))
    modules = trace["modules"]
    columns = {"class": class_name, "file": file}
    texts = {key: Text.of([value] * len(modules)) for key, value in columns.items()}
    trace = trace.with_table(modules.with_columns(**texts, line=np.full(len(modules), 1, np.int32)))
    return {finding.rule for finding in apply_rules(RuleContext(trace), RULES)}


@pytest.mark.parametrize(
    ("name", "node", "class_name", "file"),
    [
        pytest.param("select", "Select", "MultiheadAttention", ATTENTION, id="attention"),
        pytest.param("cumsum", "Cumsum", "MultiheadAttention", ATTENTION, id="all of attention"),
        pytest.param("cumsum", "Cumsum", "MultiheadAttention", "", id="file unknown"),
        pytest.param("cumsum", "Cumsum", "TransformerEncoder", TRANSFORMER, id="a transformer"),
        pytest.param("view", "View", "Linear", LINEAR, id="a view in another module"),
        pytest.param("index", "Index", "", TRANSFORMER, id="indexing"),
    ],
)
def test_what_pytorch_itself_calls_is_not_told(name: str, node: str, class_name: str, file: str) -> None:
    assert not rules_of(name, node, class_name, file) & {"forward_backward", "index_backward"}


@pytest.mark.parametrize(
    ("name", "node", "class_name", "file"),
    [
        pytest.param("select", "Select", "Net", "/home/me/net.py", id="the user's module"),
        pytest.param("select", "Select", "MultiheadAttention", "/me/net.py", id="of this name"),
        pytest.param("relu", "Relu", "ReLU", ATTENTION, id="a module that is its operator"),
        pytest.param("index", "Index", "Net", "/home/me/net.py", id="indexing"),
    ],
)
def test_what_the_user_calls_is_told(name: str, node: str, class_name: str, file: str) -> None:
    expected = "index_backward" if name == "index" else "forward_backward"
    assert expected in rules_of(name, node, class_name, file)
