"""Stall reasons of the hottest kernels' instructions, and the cost of sampling them.

A few steps with nothing, then as many under `record_contexts(stalls=True)`. The file is kept and is
read here without stepscope, whose reader may not be installed beside the GPU. Each model has a
process of its own, since what samples instructions cannot be counted on to begin again in one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.gpu.case import Case
from benchmarks.gpu.contexts_file import read_contexts
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.parts.captures import LARGEST_BYTES, pack_tightly
from benchmarks.gpu.setting import Setting, Unavailable
from benchmarks.gpu.timing import spread, step_lengths_ms
from benchmarks.gpu.training import Training

from stepscope.record import record_contexts

HOTTEST = 8
_MOST_REASONS = 5
_SETTLING_STEPS = 3


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """A model of convolutions and one of matrix products."""
    for model in setting.of(("resnet50", "bert_base")):
        yield model, partial(sample, model, setting)


def sample(model: str, setting: Setting) -> Json:
    """The hottest kernels with their reasons, and steps against steps that nothing watched."""
    steps = 2 if setting.quick else 6
    training = Training(Case(model), setting)
    for _ in range(_SETTLING_STEPS):
        training.step()
    plain = step_lengths_ms(training.step, setting.device, steps)
    path = setting.out / "stalls" / f"{model}.stepscope"
    with record_contexts(path, stalls=True):
        training.step()
        slow = step_lengths_ms(training.step, setting.device, steps)
    content = read_contexts(path)
    found = summary(content)
    if not found["samples"]:
        path.unlink()
        setting.need_gpu("a sample of an instruction")
        raise Unavailable("; ".join(content["notes"]) or "no instruction was sampled")
    return {
        "step_ms": spread(plain),
        "sampled_step_ms": spread(slow),
        "against_nothing": statistics.median(slow) / statistics.median(plain),
        "sampled_steps": steps + 1,
        **found,
        **_kept(path),
        "notes": content["notes"],
        "dropped": content["dropped"],
    }


def _kept(path: Path) -> Json:
    size = pack_tightly(path)
    if size <= LARGEST_BYTES:
        return {"file": f"stalls/{path.name}", "bytes": size}
    path.unlink()
    return {"file": None, "bytes": size}


# -- what a file of contexts holds


def summary(content: Json) -> Json:
    """Samples and device time by kernel, the kernels with the most device time first."""
    nodes, strings = content["nodes"], content["strings"]
    kinds = [content["kinds"][kind] for kind in nodes["kind"]]
    name = [strings[text] for text in nodes["name"]]
    time, samples = _sums(content, "device_ns"), _sums(content, "stalls")
    kernel_ns: dict[str, int] = defaultdict(int)
    reasons: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    instructions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for node, length in time.items():
        kernel_ns[name[node]] += length
    for node, count in samples.items():
        path = _up_to_kernel(node, nodes["parent"], kinds)
        kernel = name[path[-1]]
        reasons[kernel][name[path[-2]]] += count
        if len(path) > 2:
            instructions[kernel][name[node]] += count
    whole_ns, whole = sum(kernel_ns.values()), sum(samples.values())
    hottest = sorted(kernel_ns, key=lambda one: -kernel_ns[one])[:HOTTEST]
    return {
        "samples": whole,
        "latency_samples": sum(_sums(content, "latency_stalls").values()),
        "kernels": len(kernel_ns),
        "kernels_sampled": len(reasons),
        "reasons": _shares(_together(reasons)),
        "hottest": [
            {
                "kernel": kernel,
                "share_of_device_time": kernel_ns[kernel] / whole_ns,
                "share_of_samples": sum(reasons[kernel].values()) / max(whole, 1),
                "reasons": _shares(reasons[kernel]),
                "instructions": _shares(instructions[kernel], sum(reasons[kernel].values())),
            }
            for kernel in hottest
        ],
    }


def _sums(content: Json, metric: str) -> dict[int, int]:
    """What was measured at each context that has some."""
    table = content["metrics"].get(metric, {"node": [], "sum": []})
    return dict(zip(table["node"], table["sum"], strict=True))


def _up_to_kernel(node: int, parent: list[int], kinds: list[str]) -> list[int]:
    """A context below a kernel, those above it, and last the kernel."""
    path = [node]
    while path[-1] and kinds[path[-1]] != "kernel":
        path.append(parent[path[-1]])
    return path


def _together(reasons: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = defaultdict(int)
    for counts in reasons.values():
        for reason, count in counts.items():
            whole[reason] += count
    return whole


def _shares(counts: Mapping[str, int], of: int | None = None) -> dict[str, float]:
    """The largest as shares of all."""
    whole = of or sum(counts.values())
    largest = sorted(counts, key=lambda one: -counts[one])[:_MOST_REASONS]
    return {one: counts[one] / whole for one in largest}
