"""Steps of known length whose recording costs more in some than in others."""

import numpy as np
import pytest

from stepscope.base.arrays import Floats
from stepscope.facts.correct.costs import MOST_NS
from stepscope.facts.correct.gaps import Stretches, removed_time

US, MS = 1_000, 1_000_000
STEPS, EVENTS = 15, 40


def recorded(truth: Floats, cost: Floats, events: int = EVENTS) -> Stretches:
    """One part, whose events start and end in turns; a gap has all that its event costs."""
    operator, gap = (np.repeat(share * truth / events, events) for share in (0.6, 0.4))
    lengths = np.stack([gap + np.repeat(cost / events, events), operator], axis=1).ravel()
    step = np.repeat(np.arange(len(truth)), 2 * events)
    return Stretches(
        bounds=np.concatenate([[0], np.cumsum(np.rint(lengths).astype(np.int64))]),
        events=np.tile([1.0, 0.0], events * len(truth)),
        part=np.zeros(len(lengths), np.intp),
        step=step,
        own_work=np.zeros(len(lengths), np.bool_),
    )


def joined(*pieces: Stretches) -> Stretches:
    """One after the other."""
    ends = np.cumsum([piece.bounds[-1] for piece in pieces])
    later = [end - piece.bounds[-1] + piece.bounds[1:] for end, piece in zip(ends, pieces, strict=True)]
    fields = [np.concatenate(values) for values in zip(*(piece[1:] for piece in pieces), strict=True)]
    return Stretches(np.concatenate([[0], *later]), *fields)


def corrected(truth: Floats, cost: Floats, spread: float | None) -> Floats:
    """The lengths of the steps, ns, after the median cost was removed."""
    stretches = recorded(truth, cost)
    spreads = {} if spread is None else {"forward": spread}
    middle = float(np.median(truth + cost) - np.median(truth))
    left = np.diff(stretches.bounds) - removed_time(stretches, {"forward": middle}, spreads, len(truth))
    assert left.min() > 0
    return np.bincount(stretches.step, left)


def spread_of(times: Floats) -> float:
    low, high = np.percentile(times, [10, 90])
    return float(high - low)


@pytest.mark.parametrize("seed", range(8))
def test_steps_vary_as_much_as_unrecorded_ones(seed: int) -> None:
    """Recording costs 0.9 to 2.2 times the step; some steps are much longer than others."""
    chance = np.random.default_rng(seed)
    truth = 180 * US * chance.normal(1, 0.03, STEPS)
    cost = 180 * US * (0.9 + chance.exponential(0.25, STEPS))
    found = corrected(truth, cost, spread_of(truth))
    assert np.median(found) == pytest.approx(np.median(truth), rel=0.03)
    assert spread_of(found) == pytest.approx(spread_of(truth), rel=0.05)
    assert spread_of(corrected(truth, cost, None)) > 3 * spread_of(truth)


@pytest.mark.parametrize("seed", range(8))
def test_what_varies_without_recording_stays(seed: int) -> None:
    """Batches of 0.5 to 1.5 times the usual length; every event costs the same."""
    truth = 400 * US * np.random.default_rng(seed).uniform(0.5, 1.5, STEPS)
    found = corrected(truth, np.full(STEPS, 200.0 * US), spread_of(truth))
    assert found == pytest.approx(truth, rel=0.02)


def test_one_long_step_stays_long() -> None:
    """It did something else, which the few percentiles of unrecorded steps do not show."""
    truth, cost = np.full(STEPS, 180.0 * US), np.linspace(150, 250, STEPS) * US
    truth[7] += 20 * MS
    found = corrected(truth, cost, 5.0 * US)
    assert found[7] == pytest.approx(truth[7], rel=0.02)
    others = np.delete(found, 7)
    assert others == pytest.approx(np.delete(truth, 7), rel=0.1)


def test_fewer_than_usual_lose_less_but_are_not_stretched() -> None:
    truth, cost = np.full(STEPS, 100.0 * US), np.linspace(0, 300, STEPS) * US
    found = corrected(truth, cost, 0.0)
    assert (found <= truth + cost + 1).all()
    assert np.median(found) == pytest.approx(np.median(truth), rel=0.02)


@pytest.mark.parametrize(("events", "cost_us"), [(1, 3), (1, 25), (2, 9), (2, 35), (40, 390)])
def test_few_events_give_all_that_the_part_costs(events: int, cost_us: float) -> None:
    """A range of Python and the clocks of its part, in steps with other events."""
    few = recorded(np.full(STEPS, 60.0 * US), np.full(STEPS, cost_us * US), events)
    many = recorded(np.full(STEPS, 900.0 * US), np.full(STEPS, 60.0 * US))
    both = joined(few, many._replace(part=many.part + 1))
    costs = {"zero_grad": cost_us * US, "backward": 60.0 * US}
    left = np.diff(both.bounds) - removed_time(both, costs, {}, STEPS)
    for part, truth in enumerate((60 * US, 900 * US)):
        found = np.bincount(both.step[both.part == part], left[both.part == part])
        assert found == pytest.approx(np.full(STEPS, truth), rel=0.001)


def with_saving(period: int, events: int) -> tuple[Stretches, Floats]:
    """Every n-th step also saves, 100 µs for each event; recording an event costs 1 µs.

    All steps have 2 events around it, where the recorder's own work and new pages take 32 µs more, and 40
    elsewhere. Also whether each step saves.
    """
    saves = np.arange(STEPS) % period == 1
    around = recorded(np.full(STEPS, 30.0 * US), np.full(STEPS, 34.0 * US), 2)
    count = int(saves.sum())
    saving = recorded(np.full(count, 100.0 * US * events), np.full(count, 1.0 * US * events), events)
    saving = saving._replace(step=np.flatnonzero(saves)[saving.step])
    elsewhere = recorded(np.full(STEPS, 900.0 * US), np.full(STEPS, 40.0 * US))
    return joined(around, saving, elsewhere._replace(part=elsewhere.part + 1)), saves.astype(np.float64)


def removed_around(
    stretches: Stretches, costs: list[float], memory: list[float], spread: float, **used: Floats
):
    """What is removed in each step around and while saving, µs."""
    by_part = {"rest": costs[0] * US, "backward": costs[1] * US}
    pages = [each * US for each in memory]
    found = removed_time(
        stretches, by_part, {"rest": spread * US}, STEPS, MOST_NS, pages, *[used] * bool(used)
    )
    inside = stretches.part == 0
    return np.bincount(stretches.step[inside], found[inside]) / US


@pytest.mark.parametrize("spread", [10.0, 2010.0])  # of unrecorded steps: none saves, or enough of them do
@pytest.mark.parametrize("period", [4, 7])
def test_events_that_few_steps_have_cost_what_others_do(period: int, spread: float) -> None:
    """Neither the recorder's own work nor new pages of the usual steps are multiplied by them."""
    stretches, saves = with_saving(period, 20)
    found = removed_around(stretches, [34.0, 40.0], [30.0, 0.0], spread)
    assert found == pytest.approx(34 + 20 * saves, rel=0.1)


@pytest.mark.parametrize("costs", [-2000.0, 34.0, 2000.0])
def test_medians_of_different_work_are_no_cost(costs: float) -> None:
    """Every second step saves: one median may be of a step that does, the other of one that does not."""
    stretches, saves = with_saving(2, 20)
    found = removed_around(stretches, [max(costs, 0.0), 40.0], [0.0, 0.0], 2000.0)
    assert found == pytest.approx(2 + 20 * saves, rel=0.01)


@pytest.mark.parametrize(("each_us", "spread"), [(2.5, 2000.0), (1.0, 300.0), (1.0, 2500.0)])
def test_unrecorded_steps_tell_what_more_events_cost(each_us: float, spread: float) -> None:
    """If enough of them save: then their spread is what it takes without the cost."""
    stretches, saves = with_saving(3, 20)
    used = 50.0 * US + saves * (2000.0 + 20 * each_us) * US
    found = removed_around(stretches, [34.0, 40.0], [30.0, 0.0], spread, rest=used)
    assert found == pytest.approx(34 + 20 * each_us * saves, rel=0.02)


def test_a_part_that_unrecorded_steps_do_not_have_is_no_cost() -> None:
    """An evaluation of 200 ms in recorded steps only."""
    stretches = recorded(np.full(STEPS, 200.0 * MS), np.zeros(STEPS))
    removed = removed_time(stretches, {"evaluation": 200.0 * MS}, {}, STEPS)
    assert removed.sum() / STEPS == pytest.approx(10 * US * EVENTS)
