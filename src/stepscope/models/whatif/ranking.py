"""Every change that applies, by gain, and those that make the step fit into a memory."""

from collections.abc import Iterator, Sequence
from itertools import combinations, compress
from math import prod

import msgspec
import numpy as np

from stepscope.base.parallel import in_threads
from stepscope.errors import ChangeError, NotMeasured, StepscopeError
from stepscope.facts.annotate.steps.missing_work import notes_on_missing, work_is_missing
from stepscope.facts.annotate.steps.step_table import coverage_note, one_of_steps
from stepscope.facts.roofline.rates import Capacity
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.models.memory.caching_allocator import Settings, repeated, runs_in
from stepscope.models.memory.recorded_memory import RecordedMemory
from stepscope.models.whatif import CHANGES, Prediction, Request, parse_request
from stepscope.models.whatif.anchor import mean_ms
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.prediction import (
    MOST_TASKS,
    Baseline,
    MemoryPrediction,
    changed_lifetimes,
    predict_memory,
)
from stepscope.trace.trace import Trace


def graph_of(trace: Trace, step: int | None, rank: int | None) -> Graph:
    """The dependency graph that a user asks for: of one step, by default the longest run of
    consecutive steps, and one rank, by default all together."""
    steps = None if step is None else (step, step)
    return build_graph(trace, rank, steps) if rank is not None else build_ranks(trace, steps=steps)


class Ranking(msgspec.Struct, frozen=True):
    """Every change tried on its own."""

    gains: list[Prediction]
    reasons: dict[str, str]  # why the others do not apply, by name
    unmeasured: list[str]  # those of them that only want a calibration of the machine
    notes: list[str] = []  # what no prediction counts, as steps that the file lacks


def notes_of(trace: Trace, rank: int | None, step: int | None) -> list[str]:
    """What predictions for all steps of a rank, by default the first, or for one step do not count."""
    rank = trace.metadata.ranks[0] if rank is None else rank
    coverage = coverage_note(trace, rank)
    alone = "" if coverage else one_of_steps(trace, rank, step)
    notes = (
        coverage,
        *notes_on_missing(trace, rank),
        alone and f"predictions are for {alone}; for all they may differ",
    )
    return [note for note in notes if note]


def rank_changes(graph: Graph, rank: int | None = None, step: int | None = None) -> Ranking:
    """The prediction of each change on its own; `step` is the one that the graph was built of, if any."""
    baseline = Baseline(graph)
    changes = [change for change in CHANGES.values() if change.ranked]
    missing = work_is_missing(graph.trace)

    def tried(change: Change) -> Prediction | StepscopeError:
        if missing:
            return ChangeError(f"no ranking without all device work: {missing}")
        try:
            return baseline.predict([Request(change)])[0]
        except StepscopeError as error:
            return error

    answers = list(zip(changes, in_threads(tried, changes, len(graph), MOST_TASKS), strict=True))
    gains = [answer for _, answer in answers if isinstance(answer, Prediction)]
    errors = [(change, answer) for change, answer in answers if not isinstance(answer, Prediction)]
    return Ranking(
        sorted(gains, key=lambda prediction: prediction.predicted_step_ms),
        {change.name: change.reason(error) for change, error in errors},
        [change.name for change, error in errors if isinstance(error, NotMeasured)],
        notes_of(graph.trace, rank, step),
    )


_FEWER_SAMPLES = (0.5, 0.25, 0.125)  # of the batch: halves, as users try them
_MOST = 12  # answers that are listed; chosen: they fit on a screen


class Fit(msgspec.Struct, frozen=True):
    """Changes under which the step fits."""

    changes: tuple[str, ...]
    memory: MemoryPrediction
    step_ms: float | None  # the predicted step; None where time cannot be predicted for this trace
    cost: float | None  # time per sample over that of the unchanged step, minus 1; None where unknown
    why_no_time: str = ""


Fitting = tuple[list[Request], MemoryPrediction]


def find_fits(graph: Graph, capacity: Capacity) -> list[Fit]:
    """Changes with whose predicted allocations, with their error, the step runs; the cheapest
    first; raises ChangeError if allocations were not recorded.

    Each change alone and each two together are tried: 16 bits, an optimizer without state, fewer
    samples, and checkpointing of as few as possible of the modules that are alike.
    """
    baseline = Baseline(graph)
    fits = [_priced(baseline, *answer) for answer in fitting(baseline, capacity)]
    fits.sort(key=lambda fit: (fit.cost is None, fit.cost or 0.0, fit.memory.predicted_bytes))
    return fits[:_MOST]


def fitting(baseline: Baseline, limit: Capacity) -> list[Fitting]:
    """The fewest changes with which the step fits, in several ways; none where it fits as it is;
    raises ChangeError if allocations were not recorded."""
    memory = baseline.memory
    if memory is None:
        raise ChangeError(
            "what fits needs the allocations of one rank; record them with: stepscope run --memory SCRIPT"
        )
    if _runs(memory, [], 0.0, limit):
        return [([], predict_memory(memory, []))]
    answers = [*_fitting(baseline, _checkpoints(memory), limit)]
    sets = [set(map(str, requests)) for requests, _ in answers]
    needed = [not any(fewer < own for fewer in sets) for own in sets]  # none does more than another one
    return [*compress(answers, needed)]


def _fitting(baseline: Baseline, checkpoints: list[list[Request]], limit: Capacity) -> Iterator[Fitting]:
    """Single changes that fit, and pairs of which neither fits alone."""
    groups = [[_request("amp")], [_request("stateless_optimizer")], *checkpoints]
    short: list[list[Request]] = []
    for group in groups:
        best, whole = _smallest(baseline, [], group, limit)
        if best:
            yield best
        elif whole:
            short.append(group)
    for first, second in combinations(short, 2):
        if best := _smallest(baseline, first, second, limit)[0]:
            yield best
    for before in ([], *short):
        for factor in _FEWER_SAMPLES:
            fewer = [_request(f"batch_size:factor={factor}")]
            if best := _smallest(baseline, before, fewer, limit)[0]:
                yield best
                break


def _request(text: str) -> Request:
    return parse_request(text, CHANGES)


def _smallest(
    baseline: Baseline, before: Sequence[Request], group: Sequence[Request], limit: Capacity
) -> tuple[Fitting | None, MemoryPrediction | None]:
    """The fewest changes of a group, after others, that fit; and the last that was predicted.

    If none fit, that is the whole group.
    """
    low, high, best, answer = 1, len(group), None, None
    while low <= high:
        count = (low + high) // 2
        requests = [*before, *group[:count]]
        fits, answer = fitting_memory(baseline, requests, limit)
        if fits and answer:
            best, high = (requests, answer), count - 1
        else:
            low = count + 1
    return best, answer


def fitting_memory(
    baseline: Baseline, requests: list[Request], limit: Capacity
) -> tuple[bool, MemoryPrediction | None]:
    """Whether the step with some changes fits, error included; and its peak, if it can be predicted."""
    answer, memory = baseline.predict_memory(requests), baseline.memory
    return bool(answer and memory and _runs(memory, requests, answer.error or 0.0, limit)), answer


def _runs(memory: RecordedMemory, requests: list[Request], error: float, limit: Capacity) -> bool:
    """Whether the step runs in the memory, through PyTorch's allocator where that is a GPU's."""
    life, most = changed_lifetimes(memory, requests), int(limit.limit_bytes / (1 + error))
    if limit.is_size and memory.recording.device == "cpu":
        return life.peak()[0] <= most
    return runs_in(repeated(life), Settings.of_trace(memory.recording.trace), most)


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
        step_ms = mean_ms(baseline.predict_time(requests)[0])
    except StepscopeError as error:
        return Fit(names, memory, None, None, str(error))
    return Fit(names, memory, step_ms, per_sample(step_ms, requests) / mean_ms(baseline.simulation) - 1)


def per_sample(ms: float, requests: Sequence[Request]) -> float:
    """The time of as many samples as in the unchanged step, if changes leave fewer in a step."""
    fewer = (request for request in requests if request.change.name == "batch_size")
    return ms / prod(request.values["factor"] for request in fewer)
