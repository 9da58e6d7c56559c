"""Model trees of ONNX files, written as PyTorch's two exporters write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xspaces import message

from stepscope.errors import IngestError
from stepscope.read import model_json
from stepscope.read.model_json import model_tree, read_model

_PREFIX = "pkg.torch.onnx."


def _node(name: str, operator: str, paths: Sequence[str] = (), classes: Sequence[str] = ()) -> bytes:
    properties = {"name_scopes": str([*paths]), "class_hierarchy": str([*classes])} if paths else {}
    pairs = [(9, message((1, _PREFIX + key), (2, value))) for key, value in properties.items()]
    return message((1, "input"), (3, name), (4, operator), *pairs)


def _model(*nodes: bytes) -> bytes:
    weights = message((1, 4), (2, 1), (9, b"\0" * 400))
    graph = message(*((1, node) for node in nodes), (2, "main_graph"), (5, weights))
    return message((1, 8), (2, "pytorch"), (7, graph))


def _outline(module: dict[str, Any]) -> Any:
    return (module["name"], module["class"], *map(_outline, module["children"]))


def test_paths_and_classes_that_are_written() -> None:
    around = ("", "layers.0", "layers.0.fc"), ("a.Net", "a.Block", "torch.nn.modules.linear.Linear")
    linear = [(*part, own) for part, own in zip(around, ("linear", "aten.linear.default"), strict=True)]
    add = ("", "layers.0", "add"), ("a.Net", "a.Block", "aten.add.Tensor")
    data = _model(_node("node_MatMul", "MatMul", *linear), _node("node_add", "Add", *add))
    assert _outline(model_tree(data)) == (
        "model",
        "a.Net",
        ("layers", "ModuleList", ("0", "a.Block", ("fc", "torch.nn.modules.linear.Linear"))),
    )


def test_names_of_nodes_and_the_classes_that_their_operators_tell() -> None:
    data = _model(
        _node("/conv/Conv", "Conv"),
        _node("/layers.0/fc/MatMul", "MatMul"),
        _node("/layers.0/fc/Add", "Add"),
        _node("/layers.0/MatMul", "MatMul"),  # of the block itself, which is no Linear
        _node("/body/body.0/Relu", "Relu"),  # in a Sequential
        _node("/body/body.1/body.1.0/Gemm", "Gemm"),
        _node("/Reshape", "Reshape"),
    )
    assert _outline(model_tree(data)) == (
        "model",
        "",
        ("conv", "Conv2d"),
        ("layers", "ModuleList", ("0", "", ("fc", "Linear"))),
        ("body", "", ("0", "ReLU"), ("1", "", ("0", "Linear"))),
    )


def test_a_file_is_read_by_its_name_and_errors_name_it(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(_model(_node("/fc/Gemm", "Gemm")))
    assert _outline(read_model(file)) == ("model", "", ("fc", "Linear"))
    for content in (b"", b"\xff" * 99, _model(_node("Add_3", "Add"))):
        file.write_bytes(content)
        with pytest.raises(IngestError, match=r"net\.onnx: "):
            read_model(file)


def test_a_file_that_becomes_shorter_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(_model(_node("/fc/Gemm", "Gemm")))

    def shortened(data: Any) -> dict[str, Any]:
        os.truncate(file, 0)
        return model_tree(data)

    monkeypatch.setattr(model_json, "model_tree", shortened)
    assert _outline(read_model(file)) == ("model", "", ("fc", "Linear"))


@pytest.mark.parametrize("name", [f"/{'a.' * 5000}b/Add", f"{'/a' * 100_000}/Add"])
def test_modules_far_inside_each_other_are_refused(name: str) -> None:
    with pytest.raises(IngestError, match="more than 100 levels deep"):
        model_tree(_model(_node(name, "Add")))


def _deep(count: int) -> bytes:
    """Nodes of modules that have only the outermost one in common with others, 100 levels each."""
    return _model(*(_node(f"/{n}{'/a' * 99}/Add", "Add") for n in range(count)))


def test_modules_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IngestError, match="over 200,000 modules, or one of a huge name"):
        model_tree(_model(_node(f"/{'a' * 100_000}" * 60 + "/Add", "Add")))
    monkeypatch.setattr(model_json, "_MOST_MODULES", 2_000)  # of 200,000, which take seconds
    assert len(_outline(model_tree(_deep(20)))) == 2 + 20
    with pytest.raises(IngestError, match="over 2,000 modules"):
        model_tree(_deep(21))


@pytest.mark.parametrize("part", [b"\x0a\x00", message((1, b"\x0a\x00" * 9)), message((1, b"\x4a\x00" * 9))])
def test_a_file_of_countless_parts_is_refused(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_json, "_MOST_FIELDS", 2_000)  # of 2,000,000, which take seconds
    with pytest.raises(IngestError, match="over 2,000 fields"):
        model_tree(message((7, part * 2_000)))
