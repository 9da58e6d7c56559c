"""What lies at which address: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stepscope.capture.module_registry import ModuleRegistry

Json = dict[str, Any]


def list_storages(
    registry: ModuleRegistry,
    optimizers: Iterable[Any],
    made_at: dict[tuple[int, str], list[tuple[str, int]]],
    inputs: Any = (),
) -> list[Json]:
    """Each storage that training keeps from step to step, once.

    Args:
        registry: the model trees.
        optimizers: those that have stepped.
        made_at: the lines that made each parameter, by module and name.
        inputs: tensors given to each step, where they are known.

    Returns:
        Rows `{"address", "bytes", "device", "kind", "path", "name", "lines"}`; `kind` is
        parameter, buffer, gradient, optimizer_state or input, `path` that of the module, if any.
    """
    rows: dict[tuple[str, int], Json] = {}
    owners: dict[int, tuple[str, str]] = {}
    for row, tensor in _of_models(registry, made_at):
        owners.setdefault(id(tensor), (row["path"], row["name"]))
        _add(rows, tensor, row)
        if tensor.grad is not None:
            _add(rows, tensor.grad, {**row, "kind": "gradient", "lines": []})
    for row, tensor in _of_optimizers(optimizers, owners):
        _add(rows, tensor, row)
    for tensor in _tensors(inputs):
        _add(rows, tensor, _row("input", "", ""))
    return list(rows.values())


def _of_models(
    registry: ModuleRegistry, made_at: dict[tuple[int, str], list[tuple[str, int]]]
) -> Iterator[tuple[Json, Any]]:
    for root in registry.roots:
        for node in root.walk():
            for kind, held in (("parameter", node.module._parameters),
                               ("buffer", node.module._buffers)):  # fmt: skip
                for name, tensor in held.items():
                    if tensor is not None:
                        lines = made_at.get((id(node.module), name), [])
                        yield _row(kind, node.path, name, lines), tensor


def _of_optimizers(
    optimizers: Iterable[Any], owners: dict[int, tuple[str, str]]
) -> Iterator[tuple[Json, Any]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path, name = owners.get(id(parameter), ("", ""))
                yield _row("parameter", path, name), parameter
                if parameter.grad is not None:
                    yield _row("gradient", path, name), parameter.grad
        for parameter, state in optimizer.state.items():
            path, name = owners.get(id(parameter), ("", ""))
            for tensor in _tensors(state):
                yield _row("optimizer_state", path, name), tensor


def _tensors(state: Any) -> Iterator[Any]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _row(kind: str, path: str, name: str, lines: Any = ()) -> Json:
    return {"kind": kind, "path": path, "name": name, "lines": list(lines)}


def _add(rows: dict[tuple[str, int], Json], tensor: Any, row: Json) -> None:
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return  # a tensor without a storage of its own: sparse, a subclass, not yet made
    if size:
        device = str(tensor.device)
        rows.setdefault((device, address), {"address": address, "bytes": size,
                                            "device": device, **row})  # fmt: skip
