"""Writes `results/README.md`: what was measured, as tables, from the files of results alone.

python -m benchmarks.gpu.index [RESULTS]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.parts import EVERY, PARTS
from benchmarks.gpu.places import RESULTS
from benchmarks.gpu.results import MEASURED, read_results

Json = dict[str, Any]
_HEAD = """# Measured on GPUs

This page is generated from the files beside it: `python -m benchmarks.gpu.index`. What each part
measures, and how to run it, is in benchmarks/gpu/README.md.
"""
_MIB, _GIB = 2**20, 2**30
_SIDES = ("cpu_ms", "device_ms")


def index(results: Path) -> str:
    """The text of the page."""
    devices = [folder for folder in sorted(results.glob("*/")) if list(folder.glob("*.json"))]
    sections = [_device(folder) for folder in devices] or ["No results yet.\n"]
    return "\n".join([_HEAD, *sections])


def _device(folder: Path) -> str:
    """What was measured on one device."""
    parts = {name: folder / f"{name}.json" for name in EVERY}
    found = {name: read_results(path) for name, path in parts.items() if path.exists()}
    first = next(iter(found.values()))
    sections = [f"## {first['device']}\n", _machine(first)]
    sections += [_part(name, content) for name, content in found.items()]
    absent = [name for name in PARTS if name not in found]
    if absent:
        sections.append(f"Not run: {', '.join(absent)}.\n")
    return "\n".join(sections)


def _machine(content: Json) -> str:
    """The machine on which the first part was taken."""
    machine = content["runs"][0]["machine"]
    packages = [f"{name} {version}" for name, version in machine["packages"].items()]
    device = [f"{key} {value}" for key, value in machine["device"].items() if key != "name"]
    facts = [
        *device,
        f"CUDA {machine['cuda']}",
        f"Python {machine['python']}",
        *packages,
        f"{machine['processor']}, {machine['cpu_count']} cores",
        f"commit {machine.get('commit')}",
    ]
    quick = "Quick mode: tiny models, no evidence. " if content["quick"] else ""
    return f"{quick}{'; '.join(facts)}.\n"


def _part(name: str, content: Json) -> str:
    """One part: its table, and what could not be measured."""
    measured = {k: v for k, v in content["measurements"].items() if v["outcome"] == MEASURED}
    others = [
        f"- {key}: {one['outcome']} {one.get('error', '').partition(chr(10))[0]}".rstrip()
        for key, one in content["measurements"].items()
        if one["outcome"] != MEASURED
    ]
    others += [f"- {key}: put off, no time" for key in content["not_measured"]]
    table = _TABLES.get(name, _step_times)(measured)
    return "\n".join([f"### {name}: {content['about']}\n", table, *others, *([""] if others else [])])


# -- tables


def _step_times(measured: Json) -> str:
    """Models by variants: median step time with quartiles, and the most memory allocated."""
    cells = {tuple(key.split("/", 1)): _step(one) for key, one in measured.items()}
    variants = list(dict.fromkeys(variant for _, variant in cells))
    models = dict.fromkeys(model for model, _ in cells)
    rows = ([model, *(cells.get((model, v), "") for v in variants)] for model in models)
    return table(["step, ms (quartiles; peak GiB)", *variants], rows)


def _batch_sizes(measured: Json) -> str:
    """One row for each batch size, since models have different ones."""
    rows = sorted((key.split("/")[0], one["samples"], _step(one)) for key, one in measured.items())
    return table(["model", "batch size", "step, ms (quartiles; peak GiB)"], rows)


def _step(found: Json) -> str:
    times = found["step_ms"]
    low, high = times["quartiles"]
    peak = found.get("peak_allocated_bytes")
    memory = f"; {peak / _GIB:.2f}" if peak else ""
    return f"{times['median']:.2f} ({low:.2f} … {high:.2f}{memory})"


def _models(measured: Json) -> str:
    rows = (
        [model, one["samples"], f"{one['parameters'] / 1e6:.1f}", _losses(one["losses"])]
        for model, one in measured.items()
    )
    return table(["model", "batch size", "parameters, millions", "losses"], rows)


def _losses(losses: list[float]) -> str:
    return ", ".join(f"{loss:.3f}" for loss in losses)


def _captures(measured: Json) -> str:
    rows = ([one["file"], one["steps"], f"{one['bytes'] / _MIB:.2f}"] for one in measured.values())
    return table(["capture", "steps", "MiB"], rows)


def _annotation(measured: Json) -> str:
    rows = (
        [key, one["work"], one["events"], *map(_percent, (one["staged"], one["in_modules"]))]
        for key, one in measured.items()
    )
    return table(["capture", "work", "events", "in a stage", "in a module"], rows)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _overheads(measured: Json) -> str:
    rows = (
        [model, tool, *_cost(cost)] for model, one in measured.items() for tool, cost in one["tools"].items()
    )
    return table(["model", "tool", "step, ms", "times nothing (quartiles)"], rows)


def _cost(cost: Json) -> list[str]:
    if "error" in cost:
        return ["failed", cost["error"].partition("\n")[0]]
    return [f"{cost['step_ms']['median']:.2f}", _ratio(cost["against_nothing"])]


def _ratio(ratio: Json) -> str:
    return f"{ratio['median']:.3f} ({ratio['quartiles'][0]:.3f} … {ratio['quartiles'][1]:.3f})"


def _snapshot(measured: Json) -> str:
    names = ("file", "events", "segments", "allocated_bytes", "reserved_bytes")
    return table(names, ([one[name] for name in names] for one in measured.values()))


def _stages(measured: Json) -> str:
    """Medians of each stage on the CPU and on the device."""
    rows = (
        [model, stage, *(f"{one[side][stage]['median']:.3f}" if one[side] else "" for side in _SIDES)]
        for model, one in measured.items()
        for stage in one["cpu_ms"]
    )
    return table(["model", "stage", "CPU, ms", "device, ms"], rows)


def _jax_steps(measured: Json) -> str:
    rows = (
        [
            model,
            f"{one['step_ms']['median']:.2f}",
            f"{one['after_recording_ms']:.2f}",
            "yes" if one["same_loss"] else "no",
            f"{one['bytes'] / _MIB:.2f}",
        ]
        for model, one in measured.items()
    )
    head = ["model", "step, ms", "after recording, ms", "same loss", "capture, MiB"]
    return table(head, rows)


def _stalls(measured: Json) -> str:
    rows = (
        [model, f"{one['against_nothing']:.2f}", one["samples"], *_stalled(kernel)]
        for model, one in measured.items()
        for kernel in one["hottest"]
    )
    kernel = ("kernel", "of device time", "of samples", "reasons")
    return table(["model", "times nothing", "samples", *kernel], rows)


def _stalled(kernel: Json) -> list[str]:
    name = kernel["kernel"][:60].replace("|", "/")
    reasons = [f"{reason} {share:.0%}" for reason, share in list(kernel["reasons"].items())[:3]]
    shares = map(_percent, (kernel["share_of_device_time"], kernel["share_of_samples"]))
    return [name, *shares, ", ".join(reasons)]


def _evidence(measured: Json) -> str:
    """Steps in a row, and their host and device times; operators by how many were timed."""
    rows = (
        [key, _step(one) if "step_ms" in one else f"{len(one['operators'])} operators", *_apart(one)]
        for key, one in measured.items()
    )
    return table(["measurement", "step, ms (quartiles; peak GiB)", "host, ms", "device, ms"], rows)


def _apart(one: Json) -> list[str]:
    times = one.get("apart") or {}
    return [f"{1e-6 * median(times[side]):.2f}" if times else "" for side in ("host_ns", "device_ns")]


_TABLES = {
    "evidence": _evidence,
    "models": _models,
    "captures": _captures,
    "annotation": _annotation,
    "overheads": _overheads,
    "batch_sizes": _batch_sizes,
    "stages": _stages,
    "jax_steps": _jax_steps,
    "snapshot": _snapshot,
    "stalls": _stalls,
}


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Markdown; nothing where there are no rows."""
    body = [list(map(str, row)) for row in rows]
    if not body:
        return ""
    names = list(head)
    lines = [names, ["---"] * len(names), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(index(folder))
    print(folder / "README.md")
