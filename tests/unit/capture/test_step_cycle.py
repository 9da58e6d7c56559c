"""What ends a step: sequences of optimizer steps and of calls, and where steps end in them."""

import pytest

from stepscope.capture.cycle import PATIENCE, Kind, StepCycle


class Optimizer:
    pass


def named(name: str) -> object:
    """A thing whose class has this name."""
    return type(name, (), {})()


def ends(sequence: str) -> tuple[str, StepCycle]:
    """Mark with `|` where steps end in a sequence of one-letter optimizers."""
    optimizers = {letter: named(letter) for letter in sequence}
    ends.optimizers = optimizers  # they must outlive the cycle, which holds them weakly
    cycle = StepCycle()
    marked = [o + "|" if cycle.ends_step(optimizers[o]) else o for o in sequence]
    return "".join(marked), cycle


@pytest.mark.parametrize(
    ("sequence", "marked"),
    [
        ("AAA", "A|A|A|"),
        # Before it has stepped, nothing is known of G: one step more is seen, at the very start.
        ("DGDGDG", "D|G|DG|DG|"),
        ("DDDGDDDG", "D|D|D|G|DDDG|"),
        ("ABCABC", "A|B|C|ABC|"),
    ],
)
def test_a_step_ends_after_the_rarest_optimizer_and_of_equals_the_last(sequence, marked):
    assert ends(sequence)[0] == marked


def test_steps_are_counted_by_the_anchor():
    _, cycle = ends("DDDGDDDGDDDG")

    assert cycle.steps == 3
    assert cycle.anchor_name == "G.step"


def test_an_optimizer_created_late_takes_over():
    marked, cycle = ends("AAAAAA" + "ABAB")

    assert marked.endswith("A|B|AB|")
    assert cycle.steps == 2


def test_an_optimizer_that_left_the_loop_no_longer_ends_steps():
    marked, _ = ends("P" + "A" * 2 * PATIENCE + "AA")

    assert marked.endswith("A|A|")


def test_a_dead_optimizer_no_longer_ends_steps():
    cycle, left, right = StepCycle(), Optimizer(), Optimizer()
    cycle.ends_step(left)
    cycle.ends_step(right)
    cycle.ends_step(right)
    del left

    assert cycle.ends_step(right)


def test_nothing_is_known_before_the_first_step():
    cycle = StepCycle()

    assert (cycle.steps, cycle.anchor, cycle.anchor_name) == (0, None, None)


def turns(sequence: str) -> tuple[str, StepCycle]:
    """Mark with `|` where steps end in a sequence of models that are called, one letter each."""
    models = turns.models = {letter: named(letter) for letter in sequence}
    cycle = StepCycle()
    marked = ""
    for letter in sequence:
        recurs = not cycle.expect(models[letter], Kind.CALL)
        marked += "|" * (recurs and cycle.ends_step(models[letter], Kind.CALL)) + letter
    return marked, cycle


@pytest.mark.parametrize(
    ("sequence", "marked"),
    [
        ("AAA", "A|A|A"),
        ("TSTSTS", "TS|TS|TS"),
        ("EDCEDC", "EDC|EDC"),
        # Nobody knows that T comes again, until it does.
        ("TUUUTUUUTUUU", "TU|U|U|TUUU|TUUU"),
        ("DDDGDDDGDDDG", "D|D|DG|D|D|D|GDDD|G"),
    ],
)
def test_a_turn_begins_with_the_rarest_model_and_of_equals_the_first(sequence, marked):
    assert turns(sequence)[0] == marked


def test_a_turn_is_named_by_its_model():
    _, cycle = turns("AA")

    assert cycle.step_is == "one call of A, ended by the next"
    assert (cycle.anchor_name, cycle.steps) == (None, 1)


def test_what_tells_a_step_surely_wins_over_what_tells_it_less_surely():
    cycle, loader, model, optimizer = StepCycle(), Optimizer(), Optimizer(), Optimizer()

    assert cycle.ends_step(model, Kind.CALL)
    assert cycle.ends_step(loader, Kind.BATCH)
    assert not cycle.ends_step(model, Kind.CALL)
    assert cycle.ends_step(optimizer)
    assert not cycle.ends_step(loader, Kind.BATCH)
    assert (cycle.anchor_name, cycle.step_is) == ("Optimizer.step", None)


def test_what_is_expected_makes_unsure_until_it_has_come_or_is_late():
    cycle, loader, model = StepCycle(), Optimizer(), Optimizer()
    cycle.ends_step(model, Kind.CALL)
    assert cycle.is_sure

    cycle.expect(loader, Kind.BATCH)
    assert cycle.ends_step(model, Kind.CALL)
    assert not cycle.is_sure
    for _ in range(2 * PATIENCE):
        cycle.ends_step(model, Kind.CALL)
    assert cycle.is_sure

    assert cycle.ends_step(loader, Kind.BATCH)
    assert cycle.is_sure


def test_a_long_turn_is_waited_for():
    cycle, loader, model = StepCycle(), Optimizer(), Optimizer()
    ends = []
    for _ in range(3):
        ends.append(cycle.ends_step(loader, Kind.BATCH))
        ends.extend(cycle.ends_step(model, Kind.CALL) for _ in range(3 * PATIENCE))

    assert ends[-3 * PATIENCE :] == [False] * 3 * PATIENCE
    assert cycle.anchor.kind is Kind.BATCH
