"""The best combination of changes, against every combination of generated steps."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import reduce
from itertools import chain, combinations

import pytest
from drawn_steps import graph_of

from stepscope.graph import Graph, scale, select
from stepscope.models.whatif import CHANGES, Request, predict
from stepscope.models.whatif.anchor import step_ms
from stepscope.models.whatif.best import find_best
from stepscope.models.whatif.change import Change

# Two streams as busy as each other, which the CPU waits for; both have to become faster.
BALANCED = """
    main     |     0 10000 | ProfilerStep#0
    main     |   100   110 | cudaLaunchKernel | corr=1
    main     |   110   120 | cudaLaunchKernel | corr=2
    main     |   120 10000 | cudaDeviceSynchronize
    stream 7 |   120  9900 | left             | corr=1
    stream 8 |   120  9900 | right            | corr=2
"""


def scaling(name: str, tasks: str, factor: float, error: float = 0.0, **rest: object) -> Request:
    """A change that scales the tasks of some names, with a low estimate if `low` is in the rest."""

    def function(graph: Graph, by: float = factor) -> Graph:
        return scale(graph, select(graph, name=tasks), by)

    function.__name__ = name
    low: Mapping[str, object] = {"by": rest.pop("low")} if "low" in rest else {}
    return Request(Change(function, error=error, low=low, **rest))  # type: ignore[arg-type]


def step(rng: random.Random) -> str:
    """A step whose launches feed two streams; the CPU waits for one of them now and then."""
    lines, now, free = [], 10, {7: 0, 20: 0}
    for call in range(rng.randrange(6, 14)):
        stream, length = rng.choice([7, 20]), rng.randrange(20, 200)
        took = rng.randrange(5, 120)
        lines.append(f"main | {now} {now + took} | launch{rng.randrange(3)} | corr={call}")
        begin = max(now + took, free[stream])
        free[stream] = begin + length
        lines.append(f"stream {stream} | {begin} {free[stream]} | kernel{rng.randrange(4)} | corr={call}")
        now += took + rng.randrange(5)
        if rng.random() < 0.2:
            end = max(now, free[7]) + 1
            lines.append(f"main | {now} {end} | cudaStreamSynchronize | stream=7")
            now = end
    return "\n".join([f"main | 0 {now + 5} | ProfilerStep#0", *lines])


def changes(rng: random.Random) -> list[Request]:
    """Changes of the CPU's or a device's tasks; some overlap, one may lose, two exclude each other."""
    names = ["launch0", "launch1", "launch*", "kernel0", "kernel1", "kernel[23]", "kernel*"]
    drawn = [
        scaling(f"change{number}", name, rng.choice([0.0, 0.3, 0.5, 0.8, 1.2]))
        for number, name in enumerate(rng.sample(names, 6))
    ]
    return [*drawn, scaling("rival", rng.choice(names), 0.4, excludes=("change0",))]


def fastest_ms(graph: Graph, candidates: list[Request]) -> float:
    """The shortest step of all combinations that a script can have."""
    subsets = chain.from_iterable(combinations(candidates, count) for count in range(len(candidates) + 1))
    return min(
        step_ms(reduce(lambda changed, request: request.apply(changed), subset, graph))
        for subset in subsets
        if not any(one.change.rivals(other.change) for one, other in combinations(subset, 2))
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_combination_of_all_is_faster(seed: int) -> None:
    rng = random.Random(seed)
    graph, candidates = graph_of(step(rng)), changes(rng)
    best = find_best(graph, candidates=candidates)
    assert best.prediction.predicted_step_ms == pytest.approx(fastest_ms(graph, candidates), rel=0.01)
    assert all(part.gain_ms > 0 for part in best.parts)
    chosen = [request for request in candidates if str(request) in best.prediction.changes]
    assert best.prediction == predict(graph, chosen)


def test_changes_that_gain_only_together_are_found() -> None:
    halves = [scaling("halve_left", "left", 0.5), scaling("halve_right", "right", 0.5)]
    best = find_best(graph_of(BALANCED), candidates=halves)
    assert set(best.prediction.changes) == {"halve_left", "halve_right"}
    assert best.prediction.predicted_step_ms == pytest.approx(5.11, abs=0.02)
    assert [part.gain_ms for part in best.parts] == pytest.approx([4.89, 4.89], abs=0.02)


def test_what_saves_the_same_counts_once() -> None:
    candidates = [scaling("faster", "*", 0.1), scaling("same", "*", 0.1, excludes=("faster",))]
    best = find_best(graph_of(BALANCED), candidates=candidates)
    assert best.prediction.changes == ("faster",)
    assert best.left_out == {"same": "not together with faster"}


@pytest.mark.parametrize("doubt", [{"error": 0.5}, {"low": 1.0}])
def test_a_gain_within_its_own_error_is_left_out(doubt: dict[str, float]) -> None:
    candidates = [scaling("sure", "*", 0.8), scaling("doubtful", "*", 0.7, **doubt)]
    best = find_best(graph_of(BALANCED), candidates=candidates)
    assert best.prediction.changes == ("sure",)
    assert "which is within its error" in best.left_out["doubtful"]


def test_what_only_wants_a_calibration_is_told_apart() -> None:
    on_cpu = graph_of("main | 0 100 | ProfilerStep#0\nmain | 10 90 | aten::mm")
    best = find_best(on_cpu, candidates=[Request(CHANGES["amp"]), Request(CHANGES["no_sync"])])
    assert (best.unmeasured, [*best.not_applicable]) == (["amp"], ["amp", "no_sync"])


def test_a_goal_is_reached_by_the_fewest_changes() -> None:
    candidates = [scaling("a", "*", 0.8), scaling("b", "*", 0.7), scaling("c", "*", 0.6)]
    graph = graph_of(BALANCED)
    assert find_best(graph, 6.5, candidates=candidates).prediction.changes == ("c",)
    both = find_best(graph, 4.5, candidates=candidates)
    assert (both.prediction.changes, both.reached) == (("b", "c"), True)
    assert both.left_out == {"a": "not needed"}
    assert find_best(graph, 1.0, candidates=candidates).reached is False
