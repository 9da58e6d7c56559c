"""The combination of changes under which the step is fastest, or reaches a goal with the fewest.

Gains do not add up: a faster device gains nothing while the CPU limits the step, and two changes
that save the same work save it once. So each combination is predicted as a whole. The search grows
combinations by one change at a time, and keeps the fastest of each size. All pairs are tried, since
a change may gain only with another. What adds no more than its own error is taken out at the end.

Source: Jia et al., "Optimizing DNN computation with relaxed graph substitutions", MLSys 2019, which
searches with such costs, and also follows combinations that are no faster yet.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache

import msgspec

from stepscope.base.numbers import rounded
from stepscope.base.parallel import in_threads
from stepscope.errors import ChangeError, NotMeasured, StepscopeError
from stepscope.facts.annotate.steps.missing_work import work_is_missing
from stepscope.facts.roofline.rates import Capacity
from stepscope.graph import Graph
from stepscope.models.whatif import CHANGES, Prediction, Request
from stepscope.models.whatif.anchor import step_ms
from stepscope.models.whatif.prediction import MOST_TASKS, Baseline, Range
from stepscope.models.whatif.ranking import fitting, fitting_memory, per_sample

_WIDTH = 6  # combinations of each size that grow; chosen: the fastest of three is among them
_LEAST = 0.001  # of the step, by which a larger combination is faster; chosen: less is none

Combination = tuple[str, ...]  # requests as text, in the order in which they apply
_Sides = tuple[tuple[str, str], ...]  # the same, each with `low`, `high` or neither
_IMPOSSIBLE = float("inf")  # ms


class Part(msgspec.Struct, frozen=True):
    """A change of a combination, next to the same combination without it."""

    change: str  # as requested
    gain_ms: float  # what a step, or as many samples as in one, takes longer without it
    range: Range  # of that, by the estimates and the error of this change alone; ms
    memory_bytes: int | None  # what the peak is higher with it; None if unknown


class Best(msgspec.Struct, frozen=True):
    """The best combination that was found."""

    prediction: Prediction  # of all its changes together
    same_samples_ms: float  # the predicted time for as many samples as in the measured step
    parts: list[Part]  # its changes, the largest gain first
    reached: bool | None  # whether these samples take no longer than the goal; None without a goal
    tried: int  # how many combinations were predicted
    left_out: dict[str, str]  # why the other changes that apply are not in it, by name
    not_applicable: dict[str, str]  # why others do not apply to the steps as they are
    unmeasured: list[str]  # those of them that only want a calibration of the machine


def find_best(
    graph: Graph,
    goal_ms: float | None = None,
    capacity: Capacity | None = None,
    candidates: Iterable[Request] = (),
) -> Best:
    """The changes that together make the step fastest, or reach a goal with the fewest of them.

    Args:
        graph: of the steps as they were measured.
        goal_ms: what the step may take.
        capacity: what it has to fit into, with changes that save memory. If one leaves fewer samples
            in a step, the time of as many as before counts.
        candidates: the changes to choose from; by default all that a script can make.

    Raises:
        ChangeError: if work is missing in the recording, or nothing makes the step fit.
    """
    if missing := work_is_missing(graph.trace):
        raise ChangeError(f"cannot combine changes: {missing}")
    makeable = (Request(change) for change in CHANGES.values() if change.ranked and change.makeable)
    return _Search(Baseline(graph), list(candidates or makeable), goal_ms, capacity).best()


class _Search:
    """Combinations with the time of each, ms, or that of as many samples if it has fewer."""

    def __init__(
        self, baseline: Baseline, candidates: list[Request], goal_ms: float | None, capacity: Capacity | None
    ) -> None:
        self._baseline, self._goal_ms, self._capacity = baseline, goal_ms, capacity
        bases = [[]] if capacity is None else [requests for requests, _ in fitting(baseline, capacity)]
        if not bases:
            raise ChangeError("nothing that was tried makes the step fit")
        candidates = [request.chosen(baseline.graph) for request in candidates]
        wanted = [request for group in [*bases, candidates] for request in group]
        self._requests = {str(one): one for one in sorted(wanted, key=lambda one: one.change.order)}
        self._bases = [tuple(name for name in self._requests if name in map(str, base)) for base in bases]
        asked = ((str(request), request.refusal(baseline.graph)) for request in candidates)
        self._refusals = {name: why for name, why in asked if why}
        self._candidates = [name for name in map(str, candidates) if name not in self._refusals]
        self._ms = cache(self._time)
        self._graph = lru_cache(max(MOST_TASKS // len(baseline.graph), 1))(self._changed)

    def best(self) -> Best:
        """The best combination without changes that add no more than their own error."""
        tried = self._tried()
        best = min(map(self._earned, sorted(tried, key=self._rank)[:_WIDTH]), key=self._rank)
        others = [name for name in self._candidates if name not in best]
        return Best(
            prediction=self._baseline.predict(self._of(best))[0],
            same_samples_ms=self._ms(best),
            parts=sorted((self._part(best, name) for name in best), key=lambda part: -part.gain_ms),
            reached=None if self._goal_ms is None else self._reaches(best),
            tried=len(tried),
            left_out={name: self._reason(best, name) for name in others},
            not_applicable={
                name: self._requests[name].change.reason(why) for name, why in self._refusals.items()
            },
            unmeasured=[name for name, why in self._refusals.items() if isinstance(why, NotMeasured)],
        )

    def _tried(self) -> dict[Combination, float]:
        """Single changes, all pairs, and larger combinations of the fastest smaller ones."""
        tried: dict[Combination, float] = {}
        combinations = self._bases
        for size in range(len(self._candidates) + 1):
            times = in_threads(self._ms, combinations, len(self._baseline.graph), MOST_TASKS)
            tried.update(zip(combinations, times, strict=True))
            if any(map(self._reaches, combinations)):
                break
            if size > 1:
                faster = (combination for combination in combinations if _is_faster(combination, tried))
                combinations = sorted(faster, key=self._ms)[:_WIDTH]
            combinations = list(dict.fromkeys(self._grown(combinations)))
        return tried

    def _grown(self, combinations: Iterable[Combination]) -> Iterator[Combination]:
        """Each possible combination with each change that it can have in addition."""
        for combination in combinations:
            for name in self._candidates if self._ms(combination) < _IMPOSSIBLE else ():
                if name not in combination and not self._rivals(combination, name):
                    yield self._with(combination, name)

    def _time(self, combination: Combination) -> float:
        """The predicted time; infinite for what does not fit or apply."""
        if self._capacity and not fitting_memory(self._baseline, self._of(combination), self._capacity)[0]:
            return _IMPOSSIBLE
        try:
            return self._estimated_ms(combination)
        except StepscopeError:
            return _IMPOSSIBLE

    def _estimated_ms(self, combination: Combination, name: str = "", side: str = "") -> float:
        """The time, if one of the changes gains least (`low`) or most (`high`)."""
        sides = tuple((one, side if one == name else "") for one in combination)
        return per_sample(step_ms(self._graph(sides)), self._of(combination))

    def _changed(self, sides: _Sides) -> Graph:
        """The graph with some changes; kept, since larger combinations begin with it."""
        if not sides:
            return self._baseline.graph
        *before, (name, side) = sides
        request = self._requests[name]
        return request.apply(self._graph(tuple(before)), getattr(request.change, side) if side else None)

    def _of(self, combination: Combination) -> list[Request]:
        return [self._requests[name] for name in combination]

    def _with(self, combination: Combination, name: str) -> Combination:
        """A combination with another change, in an order that depends on its changes alone."""
        return tuple(known for known in self._requests if known in combination or known == name)

    def _rivals(self, combination: Combination, name: str) -> list[str]:
        """Those of its changes that a script cannot have together with another one."""
        new = self._requests[name].change
        return [one.change.name for one in self._of(combination) if new.rivals(one.change)]

    def _reaches(self, combination: Combination) -> bool:
        return self._goal_ms is not None and self._ms(combination) <= self._goal_ms

    def _rank(self, combination: Combination) -> tuple[bool, int, float]:
        """The best comes first: what reaches the goal with the fewest changes, or else the fastest."""
        reaches = self._reaches(combination)
        return not reaches, len(combination) if reaches else 0, self._ms(combination)

    def _earned(self, combination: Combination) -> Combination:
        """The combination without changes whose gain is within their own error, the least one first."""
        optional = (name for name in combination if self._ms(_without(combination, name)) < _IMPOSSIBLE)
        gains = {name: self._gain_ms(combination, name, "low") for name in optional}
        least = min(gains, key=gains.__getitem__, default="")
        is_done = not least or gains[least] > 0
        return combination if is_done else self._earned(_without(combination, least))

    def _gain_ms(self, combination: Combination, name: str, side: str = "") -> float:
        """What the others take longer without a change, at most (`high`) or at least (`low`)."""
        change, without = self._requests[name].change, self._estimated_ms(_without(combination, name))
        error = {"low": 1, "high": -1}.get(side, 0) * change.error_on(self._baseline.graph)
        estimated = self._estimated_ms(combination, name, side if getattr(change, side, None) else "")
        return without - estimated * (1 + error)

    def _part(self, combination: Combination, name: str) -> Part:
        others = _without(combination, name)
        low, gain, high = (self._gain_ms(combination, name, side) for side in ("low", "", "high"))
        sides = [self._baseline.predict_memory(self._of(one)) for one in (others, combination)]
        peaks = [side.predicted_bytes for side in sides if side and name not in side.unknown]
        return Part(name, gain, (min(low, gain), max(high, gain)), peaks[1] - peaks[0] if peaks[1:] else None)

    def _reason(self, best: Combination, name: str) -> str:
        """Why a change that applies is not in the best combination."""
        if rivals := self._rivals(best, name):
            return f"not together with {rivals[0]}"
        if self._reaches(best):
            return "not needed"
        larger = self._with(best, name)
        if self._ms(larger) == _IMPOSSIBLE:
            return "does not fit or apply together with the others"
        low, gain = (self._gain_ms(larger, name, side) for side in ("low", ""))
        if gain <= 0:
            return f"makes it {rounded(-gain)} ms slower" if gain else "saves nothing more"
        return f"saves {rounded(gain)} ms more" + (", which is within its error" if low <= 0 else "")


def _without(combination: Combination, name: str) -> Combination:
    return tuple(other for other in combination if other != name)


def _is_faster(combination: Combination, tried: Mapping[Combination, float]) -> bool:
    """Whether each of its changes shortens it, as far as it was tried without it."""
    smaller = (tried.get(_without(combination, name), _IMPOSSIBLE) for name in combination)
    return tried[combination] < min(smaller) * (1 - _LEAST)
