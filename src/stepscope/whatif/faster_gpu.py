"""`faster_gpu`: what if the same step ran on another device?"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.whatif.devices import device_of
from stepscope.whatif.kernels import compute_bound, in_half, in_tf32, memory_bound


def faster_gpu(graph: Graph, to: str = "H100", estimate: str = "typical") -> Graph:
    """Kernels run on the device TO: by its compute or its memory bandwidth against this one's.

    Args:
        graph: any graph.
        to: a device of `data/gpus.json`.
        estimate: `typical`; `low` takes the least of the ratios in use for every kernel.

    Raises:
        ChangeError: if the rates of either device are not known.
    """
    if estimate not in ("low", "typical"):
        raise ChangeError(f"faster_gpu: expected estimate low or typical, found {estimate!r}")
    old, new = _rates(str(device_of(graph).get("name", ""))), _rates(to)
    compute, half, tf32 = compute_bound(graph), in_half(graph), in_tf32(graph)
    parts = (
        (memory_bound(graph), "bandwidth"),
        (compute & half, "half"),
        (compute & tf32, "tf32"),
        (compute & ~half & ~tf32, "fp32"),
    )
    ratios = {what: _ratio(old, new, what) for tasks, what in parts if tasks.any()}
    if not ratios:
        raise ChangeError("faster_gpu: no kernel in these steps")
    least = min(ratios.values())
    for tasks, what in parts:
        ratio = least if estimate == "low" else ratios.get(what, 1.0)
        graph = scale(graph, tasks, 1 / ratio)
    return graph


def _ratio(old: dict[str, Any], new: dict[str, Any], what: str) -> float:
    if not old[what] or not new[what]:
        raise ChangeError(f"faster_gpu: {old['name']} or {new['name']} has no rate for {what}")
    return float(new[what] / old[what])


def _rates(name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [gpu for gpu in _table() if gpu["match"] in name]
    if not found:
        known = ", ".join(gpu["name"] for gpu in _table())
        raise ChangeError(f"faster_gpu: rates are known for {known}; found {name or 'no name'!r}")
    return found[0]


@cache
def _table() -> list[dict[str, Any]]:
    text = files("stepscope.whatif").joinpath("data/gpus.json").read_text("utf-8")
    gpus: list[dict[str, Any]] = json.loads(text)["gpus"]
    return gpus
