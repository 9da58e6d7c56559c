"""Results of stepscope for a device's captures, compared with measurements and published figures.

python -m benchmarks.gpu.accuracy [RESULTS/DEVICE …]    prints Markdown
python -m benchmarks.gpu.accuracy --write               puts it into docs/evidence/accuracy.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.comparisons import StageTimes, jax_steps, snapshots, stage_times
from benchmarks.gpu.coverage import coverage
from benchmarks.gpu.index import table
from benchmarks.gpu.places import RESULTS, ROOT
from benchmarks.gpu.predictions import Outcome, Sizes, batch_sizes, measured, outcomes, replay_errors
from benchmarks.gpu.results import read_results

Json = dict[str, Any]
PAGE = ROOT / "docs" / "evidence" / "accuracy.md"
_MOST_OF_CAP = 0.85  # as far as `stepscope batch` goes on its own
BEGIN, END = "<!-- benchmarks.gpu.accuracy: begin -->\n", "<!-- benchmarks.gpu.accuracy: end -->\n"
NOTHING = "Nothing has been measured on a GPU yet (gpu_evidence.md).\n"


def report(device: Path) -> str:
    """The tables of one device; those of parts that were not taken are left out."""
    sections = [section(device) for section in _SECTIONS]
    return "\n".join([f"### {_name(device)}\n", *filter(None, sections)])


def _name(device: Path) -> str:
    first = next(iter(sorted(device.glob("*.json"))), None)
    return str(read_results(first)["device"]) if first else device.name


# -- what is slow


def _annotation(device: Path) -> str:
    """How much of the work has a stage, a module and a launch."""
    found = [coverage(path) for path in _captures(device)]
    shares = [[one["staged"], one["in_modules"], one["launched"]] for one in found]
    if not shares:
        return ""
    places = ("in a stage", "forward and backward in a module", "with its launch")
    rows = [
        [place, _mean(mine), _percent(min((one for one in mine if one is not None), default=None))]
        for place, mine in zip(places, zip(*shares, strict=True), strict=True)
    ]
    return _told(
        f"Work of {len(found)} captures that has a stage, a module and a launch, by its length "
        "(launches by count). HOTLINE places 97 to 99 % of operations right.",
        table(["work", "mean", "least"], rows),
    )


def _captures(device: Path) -> list[Path]:
    return sorted((device / "captures").glob("*.stepscope"))


def _stages(device: Path) -> str:
    """Stages of captures next to hand-set timers of unwatched steps: medians over the models."""
    by_stage: dict[str, list[StageTimes]] = {}
    for times in stage_times(device):
        by_stage.setdefault(times.stage, []).append(times)
    rows = [[stage, len(times), *_stage_errors(times)] for stage, times in by_stage.items()]
    return _told(
        "CPU time of stages of plain captures next to hand-set timers in steps that nothing "
        "watched: median distance.",
        table(["stage", "models", "corrected", "as recorded"], rows),
    )


def _stage_errors(times: Sequence[StageTimes]) -> list[str]:
    pairs = [(one.corrected / one.cpu - 1, one.recorded / one.cpu - 1) for one in times]
    return [f"{statistics.median(map(abs, errors)):.1%}" for errors in zip(*pairs, strict=True)]


def _jax(device: Path) -> str:
    rows = [
        [model, f"{unwatched:.2f}", f"{after / unwatched - 1:+.1%}", f"{found / unwatched - 1:+.1%}"]
        for model, unwatched, after, found in jax_steps(device)
    ]
    head = ["model", "step that nothing watched, ms", "after recording", "recorded"]
    return _told("Steps of JAX, and how much longer they are.", table(head, rows))


def _memory(device: Path) -> str:
    rows = [[model, *(f"{size:,}" for size in sizes)] for model, *sizes in snapshots(device)]
    head = ["model", "allocated, by PyTorch", "from the history", "reserved, by PyTorch", "from the history"]
    return _told("Peaks of memory snapshots, bytes.", table(head, rows))


# -- what a change would bring


def _replays(device: Path) -> str:
    errors = replay_errors(device)
    if not errors:
        return ""
    sizes = [abs(error) for error in errors.values()]
    worst = max(errors, key=lambda name: abs(errors[name]))
    return (
        f"The unchanged replay of {len(errors)} captures: mean error {statistics.mean(sizes):.3%}, "
        f"greatest {max(sizes):.3%} ({worst}).\n"
    )


def _changes(device: Path) -> str:
    """The error of each change to each model, and over all models."""
    found = list(outcomes(device))
    models = list(dict.fromkeys(one.model for one in found))
    rows = [
        _change_row(name, [one for one in found if one.change == name], models)
        for name in dict.fromkeys(one.change for one in found)
    ]
    return _told(
        "Changes, predicted from the FP32 captures alone, at the pace of the CPU that nothing "
        "watched: error by model. Brackets: the step without the change is not within 10 % of the "
        "captured one, so the machine was another; these do not count. Two numbers: measured twice. "
        "DAYDREAM: at most 13 % for AMP and the fused optimizer.",
        table(["change", *models, "mean / greatest", "median", "in range", "wrong signs"], rows),
    )


def _change_row(name: str, found: Sequence[Outcome], models: Sequence[str]) -> list[str]:
    by_model = {name: ", ".join(_cell(one) for one in found if one.model == name) for name in models}
    held = [one for one in found if one.held and one.error is not None]
    errors = [abs(one.error or 0.0) for one in held]
    wrong = sum(not one.right_sign for one in held)
    middle = f"{statistics.median(errors):.1%}" if errors else ""
    covered = f"{sum(one.covered for one in held)}/{len(held)}"
    return [name, *by_model.values(), _mean_max(errors, 1), middle, covered, str(wrong)]


def _cell(one: Outcome) -> str:
    if one.error is None:
        return "refused"
    return f"{one.error:+.1%}" if one.held else f"({one.error:+.0%})"


# -- which batch size


def _batch_sizes(device: Path) -> str:
    found = list(batch_sizes(device))
    rows = [_sizes_row(one) for one in found]
    if rows:
        both = ([error for one in found for error in kind(one)] for kind in _ERRORS)
        throughput, memory = both
        covered = [is_inside for one in found for is_inside in one.covered]
        shares = _mean_max(throughput, 1), _mean_max(memory, 2), f"{statistics.mean(covered):.0%}"
        rows.append(["all", "", "", *shares])
        rows.append(["all but unet", "", "", "", _mean_max(_memory_outside_workspaces(found), 2), ""])
    head = [
        "model",
        "fitted",
        "predicted",
        "throughput error, mean / greatest",
        "memory error, mean / greatest",
        "in range",
    ]
    return _told(
        "Batch sizes, from five of those measured, chosen as `stepscope batch` chooses them on a "
        "GPU. SKYLINE: throughput 3.7 % (greatest 10 %), memory 0.19 % (greatest 1.1 %). The rule for "
        "workspaces was chosen with this U-Net in view.",
        table(head, rows),
    )


_ERRORS: tuple[Callable[[Sizes], tuple[float, ...]], ...] = (
    lambda one: one.throughput,
    lambda one: one.memory,
)


def _memory_outside_workspaces(found: Sequence[Sizes]) -> list[float]:
    """cuDNN takes gigabytes of workspaces for the U-Net's convolutions at some sizes, and not at others."""
    return [error for one in found if one.model != "unet" for error in one.memory]


def _fits(device: Path) -> str:
    """What the allocator holds, and how often the largest size that fits under the cap is right."""
    found = list(batch_sizes(device))
    if not found:
        return ""
    errors = [error for one in found for error in one.reserved]
    rows = [
        f"{sum(one.right for one in some)} of {len(found)}"
        for some in (found, batch_sizes(device, _MOST_OF_CAP))
    ]
    held = statistics.mean(is_held for one in found for is_held in one.held)
    head = ["reserved memory error, mean / greatest", "in range", "largest size right", "from 85 %"]
    return _told(
        "Reserved memory, and the largest size under a cap of 64 GiB: from the same five sizes, and from "
        "five whose tensors take at most 85 % of it.",
        table(head, [[_mean_max(errors, 1), f"{held:.0%}", *rows]]),
    )


def _sizes_row(one: Sizes) -> list[str]:
    named = (", ".join(map(str, sizes)) for sizes in (one.fitted, one.predicted))
    covered = f"{sum(one.covered)} of {len(one.covered)}"
    return [one.model, *named, _mean_max(one.throughput, 1), _mean_max(one.memory, 2), covered]


# -- what watching costs


def _overheads(device: Path) -> str:
    rows = [
        [
            model,
            _tool(tool, cost),
            f"{cost['step_ms']['median']:.2f}",
            f"{cost['against_nothing']['median']:.3f}",
        ]
        for model, one in measured(device, "overheads").items()
        for tool, cost in one["tools"].items()
        if "error" not in cost
    ]
    return _told(
        "What watching costs, as a ratio to steps that nothing watched, taken in turn. DEEPCONTEXT: 1.12.",
        table(["model", "tool", "step, ms", "times nothing"], rows),
    )


def _tool(name: str, cost: Mapping[str, Any]) -> str:
    """A tool's name; the collector of contexts in Python is gone."""
    return f"{name}, in Python (removed since)" if cost.get("collector") == "python" else name


# -- Markdown


_SECTIONS = (_annotation, _stages, _jax, _memory, _replays, _changes, _batch_sizes, _fits, _overheads)


def _told(sentence: str, rows: str) -> str:
    return f"{sentence}\n\n{rows}" if rows else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _mean(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return _percent(statistics.mean(known)) if known else ""


def _mean_max(errors: Sequence[float], digits: int) -> str:
    if not errors:
        return ""
    return f"{statistics.mean(errors):.{digits}%} / {max(errors):.{digits}%}"


def devices() -> Iterator[Path]:
    """The folders of results."""
    return (folder for folder in sorted(RESULTS.glob("*/")) if list(folder.glob("*.json")))


def written(page: str, text: str) -> str:
    """`page` with `text` between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r} in {PAGE}")
    return before + BEGIN + text + END + after


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--write"]
    folders = [Path(name) for name in names] or list(devices())
    text = "\n".join(map(report, folders)) or NOTHING
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(), text))
    else:
        print(text)


if __name__ == "__main__":
    main()
