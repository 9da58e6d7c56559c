"""Operators that a busy machine delayed."""

import random

import pytest

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.device.one_off_costs import one_off_delays
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def run(slow: dict[tuple[int, int], float], steps: int = 3, name: str = "aten::sqrt") -> Trace:
    """Steps with ten operators of 100 µs; `slow` has others, by step and place."""
    now, lines = 0.0, []
    for step in range(steps):
        begin = now
        for place in range(10):
            end = now + slow.get((step, place), 100)
            lines.append(f"main | {now + 1} {end} | {name}")
            now = end + 1
        lines.append(f"main | {begin} {now} | ProfilerStep#{step}")
    return annotate(drawn_trace("\n".join(lines)))


def delayed(trace: Trace) -> list[tuple[int, float]]:
    """Step and ms of each delayed operator."""
    rows = one_off_delays(trace, 0)
    events = trace.events
    return [(int(events["step"][row]), round(events["self_ns"][row] / 1e6)) for row in rows]


@pytest.mark.parametrize(
    ("slow", "steps", "found"),
    [
        ({}, 3, []),
        ({(1, 4): 20_000}, 3, [(1, 20)]),
        ({(0, 4): 20_000, (2, 7): 9_000}, 3, [(0, 20), (2, 9)]),
        ({(step, 4): 20_000 for step in range(3)}, 3, []),  # slow in every step: its own doing
        ({(0, 4): 20_000, (1, 4): 20_000}, 3, []),
        ({(1, 4): 900}, 3, []),  # too short to tell
        ({(1, 4): 20_000}, 2, []),
    ],
)
def test_what_is_slow_in_one_step_only(slow, steps, found) -> None:
    assert delayed(run(slow, steps)) == found


@pytest.mark.parametrize("seed", range(5))
def test_any_operators_of_any_steps(seed: int) -> None:
    chance = random.Random(seed)
    places = chance.sample(range(10), 3)
    slow = {(chance.randrange(4), place): chance.uniform(5_000, 30_000) for place in places}
    assert sorted(delayed(run(slow, 4))) == sorted(
        (step, round(length / 1000)) for (step, _), length in slow.items()
    )


def test_operators_delayed_in_two_steps_are_no_finding() -> None:
    """A third of the step, were it not noise."""
    trace = run({(0, 4): 700, (1, 2): 20_000, (2, 8): 20_000}, 3)
    found = apply_rules(RuleContext(trace), RULES)
    assert not [one for one in found if "20" in one.what and one.severity == "critical"]
