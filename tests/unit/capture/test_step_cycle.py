"""Which optimizer ends a step: sequences of optimizer steps, and where steps end in them."""

import pytest

from stepscope.capture.cycle import PATIENCE, StepCycle


class Optimizer:
    pass


def ends(sequence: str) -> tuple[str, StepCycle]:
    """Mark with `|` where steps end in a sequence of one-letter optimizers."""
    optimizers = {letter: Optimizer() for letter in sequence}
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
    assert cycle.anchor is ends.optimizers["G"]
    assert cycle.anchor_name == "Optimizer.step"


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
