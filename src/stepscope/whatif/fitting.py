"""The changes that make a step fit into a memory, the cheapest in time first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from stepscope.errors import ChangeError, StepscopeError
from stepscope.graph import Graph
from stepscope.memory.recorded_memory import RecordedMemory
from stepscope.whatif import CHANGES, Prediction, Request, parse_request
from stepscope.whatif.memory_prediction import MemoryPrediction, predict_memory
from stepscope.whatif.prediction import Baseline

_FEWER_SAMPLES = (0.5, 0.25, 0.125)
_MOST = 12


@dataclass(frozen=True)
class Fit:
    """Changes under which the step fits.

    Attributes:
        changes: as requested on the command line.
        memory: the predicted peak.
        step_ms: the predicted step; None where time cannot be predicted for this trace.
        cost: time per sample over that of the unchanged step, minus 1; None where unknown.
        why_no_time: the reason.
    """

    changes: tuple[str, ...]
    memory: MemoryPrediction
    step_ms: float | None
    cost: float | None
    why_no_time: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write."""
        return asdict(self)


def find_fits(graph: Graph, limit_bytes: int) -> list[Fit]:
    """Changes whose predicted peak, with its error, is at most a limit; the cheapest first.

    Each change alone and each two together are tried: 16 bits, an optimizer without state, fewer
    samples, and checkpointing of as few as possible of the modules that are alike.

    Args:
        graph: of the steps as they were measured.
        limit_bytes: what may be allocated.

    Raises:
        ChangeError: if allocations were not recorded.
    """
    baseline = Baseline(graph)
    memory = baseline.memory
    if memory is None:
        raise ChangeError(
            "--fits needs the allocations of one rank; record them with: "
            "stepscope run --memory SCRIPT"
        )
    if memory.lifetimes.peak()[0] <= limit_bytes:
        return [Fit((), predict_memory(memory, []), baseline.measured_ms, 0.0)]
    fitting = _without_needless([*_fitting(memory, limit_bytes)])
    found = [_priced(baseline, requests, answer) for requests, answer in fitting]
    found.sort(key=lambda fit: (fit.cost is None, fit.cost or 0.0, fit.memory.predicted_bytes))
    return found[:_MOST]


def _fitting(
    memory: RecordedMemory, limit: int
) -> Iterator[tuple[list[Request], MemoryPrediction]]:
    """Single changes that fit, and pairs of which neither fits alone."""
    groups = [[_request("amp")], [_request("stateless_optimizer")], *_checkpoints(memory)]
    short: list[list[Request]] = []
    for group in groups:
        found, whole = _smallest(memory, [], group, limit)
        if found:
            yield found
        elif whole:
            short.append(group)
    for first, second in combinations(short, 2):
        if found := _smallest(memory, first, second, limit)[0]:
            yield found
    for before in ([], *short):
        for factor in _FEWER_SAMPLES:
            fewer = [_request(f"batch_size:factor={factor}")]
            if found := _smallest(memory, before, fewer, limit)[0]:
                yield found
                break


def _without_needless(
    found: list[tuple[list[Request], MemoryPrediction]],
) -> list[tuple[list[Request], MemoryPrediction]]:
    """Without those that do more than another one that fits as well."""
    sets = [set(map(str, requests)) for requests, _ in found]
    return [
        one for one, own in zip(found, sets, strict=True) if not any(set_ < own for set_ in sets)
    ]


def _request(text: str) -> Request:
    return parse_request(text, CHANGES)


def _smallest(
    memory: RecordedMemory, before: Sequence[Request], group: Sequence[Request], limit: int
) -> tuple[tuple[list[Request], MemoryPrediction] | None, MemoryPrediction | None]:
    """The fewest changes of a group, after others, that fit; and the last that was predicted.

    If none fit, that is the whole group.
    """
    low, high, best, answer = 1, len(group), None, None
    while low <= high:
        count = (low + high) // 2
        requests = [*before, *group[:count]]
        answer = _predicted(memory, requests)
        if answer is not None and answer.most_bytes <= limit:
            best, high = (requests, answer), count - 1
        else:
            low = count + 1
    return best, answer


def _predicted(memory: RecordedMemory, requests: Sequence[Request]) -> MemoryPrediction | None:
    try:
        return predict_memory(memory, requests)
    except ChangeError:
        return None


def _checkpoints(memory: RecordedMemory) -> list[list[Request]]:
    """Modules of one class inside one module, as requests to checkpoint each of them."""
    modules = memory.recording.trace["modules"]
    called = np.flatnonzero(modules["calls"] > 0)
    families: dict[tuple[int, str], list[str]] = {}
    for row in called.tolist():
        key = int(modules["parent"][row]), modules.text("class")[row] or ""
        families.setdefault(key, []).append(modules.text("path")[row] or "")
    has_children = {int(row) for row in modules["parent"][called]}
    paths_with = {modules.text("path")[row] for row in has_children if row >= 0}
    return [
        [_request(f"checkpoint:module={path}") for path in paths]
        for paths in families.values()
        if len(paths) > 1 and paths_with.issuperset(paths)
    ]


def _priced(baseline: Baseline, requests: list[Request], memory: MemoryPrediction) -> Fit:
    names = tuple(map(str, requests))
    try:
        prediction: Prediction = baseline.predict(requests)[0]
    except StepscopeError as error:
        return Fit(names, memory, None, None, str(error))
    samples = float(np.prod([one.values["factor"] for one in requests
                             if one.change.name == "batch_size"]))  # fmt: skip
    cost = prediction.predicted_step_ms / samples / prediction.replayed_step_ms - 1
    return Fit(names, memory, prediction.predicted_step_ms, cost)
