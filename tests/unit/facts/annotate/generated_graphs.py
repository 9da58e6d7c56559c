"""Kineto traces of captured and replayed CUDA graphs, drawn by seed, with what captured each kernel."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_KINDS = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
_CALLS = {
    "cuda": {"kernel": "cudaLaunchKernel", "copy": "cudaMemcpyAsync", "set": "cudaMemsetAsync"},
    "hip": {"kernel": "hipModuleLaunchKernel", "copy": "hipMemcpyAsync", "set": "hipMemsetAsync"},
}
_NAMES = {"copy": "Memcpy DtoD (Device -> Device)", "set": "Memset (Device)"}


@dataclass
class Node:
    """A node of a graph: what it runs, and the module and line of its operator."""

    kind: str
    kernel: str
    operator: str
    path: tuple[str, ...]
    line: int
    stream: int = 7
    body: list[Node] = field(default_factory=list)  # of a conditional node


@dataclass
class Recording:
    """The events of a capture and of replays, and the truth: module and line by time of start."""

    capture: list[Event] = field(default_factory=list)
    replay: list[Event] = field(default_factory=list)
    truth: dict[float, tuple[str, int]] = field(default_factory=dict)
    correlation: int = 100
    clock: float = 1000.0


def recording(seed: int) -> Recording:
    """Several graphs of a model, captured once and replayed a few times."""
    draw = random.Random(seed)
    vendor = draw.choice(["cuda", "hip"])
    has_ids = vendor == "cuda"
    result = Recording()
    graphs = [_graph(draw, number, has_ids) for number in range(draw.randint(1, 4))]
    for nodes in graphs:
        _capture(result, nodes, vendor)
    result.clock += 5000
    for step in range(draw.randint(2, 4)):
        begin = result.clock
        for number, nodes in draw.sample(list(enumerate(graphs)), len(graphs)) if step else enumerate(graphs):
            _replay(result, nodes, draw, vendor, 20 + 10 * number if has_ids else 0)
        _span(result.replay, f"ProfilerStep#{step}", "user_annotation", begin, result.clock)
        result.clock += 20
    return result


def _graph(draw: random.Random, number: int, has_ids: bool) -> list[Node]:
    nodes = []
    for layer in range(draw.randint(2, 6)):
        for part in ("attention", "mlp", "norm")[: draw.randint(1, 3)]:
            path = (f"Net_{number}", f"Block_{10 * number + layer}", f"{part.title()}_{10 * number + layer}")
            for place in range(draw.randint(1, 4)):
                kind = draw.choices(["kernel", "copy", "set"], [8, 1, 1])[0]
                stream = draw.choice([7, 7, 20]) if has_ids else (13 if kind == "copy" else 7)
                name = _NAMES.get(kind, f"{part}_kernel_{draw.randint(0, 2)}")
                line = 10 * layer + place + 100 * len(part)
                nodes.append(Node(kind, name, f"aten::{part}", path, line, stream))
    if has_ids and draw.random() < 0.4:
        body = [
            Node("kernel", "body", "aten::body", (f"Net_{number}", f"Body_{number}"), 900 + at)
            for at in range(3)
        ]
        nodes.insert(draw.randint(1, len(nodes)), Node("kernel", "", "", (), 0, body=body))
    return nodes


def _span(events: list[Event], name: str, kind: str, begin: float, end: float, **args: Any) -> None:
    place = {"pid": 1, "tid": 1} if kind not in _KINDS.values() else {"pid": 0, "tid": args["stream"]}
    times = {"ts": round(begin, 3), "dur": round(end - begin, 3)}
    events.append({"ph": "X", "cat": kind, "name": name, **place, **times, "args": args})


def _capture(result: Recording, nodes: list[Node], vendor: str) -> None:
    begin = result.clock
    _runtime(result, f"{vendor}StreamBeginCapture")
    _capture_nodes(result, nodes, vendor)
    _runtime(result, f"{vendor}StreamEndCapture")
    _span(result.capture, "train.py(3): capture", "python_function", begin - 1, result.clock)
    result.clock += 30


def _runtime(result: Recording, name: str, **args: Any) -> None:
    result.correlation += 1
    begin, result.clock = result.clock, result.clock + 2
    _span(result.capture, name, "cuda_runtime", begin, begin + 1, correlation=result.correlation, **args)


def _capture_nodes(result: Recording, nodes: list[Node], vendor: str) -> None:
    for node in nodes:
        begin = result.clock
        if node.body:
            _runtime(result, "cudaStreamBeginCaptureToGraph")
            _capture_nodes(result, node.body, vendor)
            _runtime(result, "cudaStreamEndCapture")
            continue
        result.clock += 1
        _runtime(result, f"{vendor}StreamGetCaptureInfo")
        names = {"kernel": node.kernel} if vendor == "hip" and node.kind == "kernel" else {}
        _runtime(result, _CALLS[vendor][node.kind], **names)
        inner, end = begin + 0.5, result.clock
        _span(result.capture, node.operator, "cpu_op", inner, end)
        _span(result.capture, f"model.py({node.line}): forward", "python_function", begin + 0.4, end + 0.1)
        for depth, name in enumerate(node.path):
            edge = 0.1 * (len(node.path) - depth)
            _span(
                result.capture, f"nn.Module: {name}", "python_function", begin + 0.3 - edge, end + edge + 0.1
            )
        result.clock = end + 1


def _replay(result: Recording, nodes: list[Node], draw: random.Random, vendor: str, graph: int) -> None:
    result.correlation += 1
    args = {"correlation": result.correlation}
    _span(result.replay, f"{vendor}GraphLaunch", "cuda_runtime", result.clock, result.clock + 4, **args)
    free = {node.stream: result.clock + 6.0 for node in nodes}
    _replay_nodes(result, nodes, draw, graph, free)
    result.clock = max(free.values()) + 5


def _replay_nodes(
    result: Recording, nodes: list[Node], draw: random.Random, graph: int, free: dict[int, float]
) -> None:
    for place, node in enumerate(nodes):
        if node.body:
            for _ in range(draw.randint(0, 3)):
                _replay_nodes(result, node.body, draw, graph + 1, free)
            continue
        begin = round(free[node.stream] + draw.choice([0.5, 1.5]) + 0.001 * len(result.truth), 3)
        free[node.stream] = begin + draw.uniform(1, 40)
        ids = {"graph id": graph, "graph node id": graph << 32 | place + 1} if graph else {}
        args = {"correlation": result.correlation, "stream": node.stream, "device": 0, **ids}
        _span(result.replay, node.kernel, _KINDS[node.kind], begin, free[node.stream], **args)
        result.truth[begin] = (".".join(node.path), node.line)


def write(path: Path, events: list[Event]) -> Path:
    """The events as a trace of torch.profiler."""
    facts = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}], "traceEvents": events}
    path.write_text(json.dumps(facts))
    return path
