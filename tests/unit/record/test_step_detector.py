"""What ends a step, and the thread whose steps count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stepscope.record.step_detector import AWAITED, PATIENCE, Kind, StepDetector, TrainingThread


class Optimizer:
    pass


def named(name: str) -> object:
    """A thing whose class has this name."""
    return type(name, (), {})()


def ends(sequence: str) -> tuple[str, StepDetector]:
    """Mark with `|` where steps end in a sequence of one-letter optimizers."""
    optimizers = {letter: named(letter) for letter in sequence}
    ends.optimizers = optimizers  # they must outlive the detector, which holds them weakly
    detector = StepDetector()
    marked = [o + "|" if detector.advance(optimizers[o]) else o for o in sequence]
    return "".join(marked), detector


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
    _, detector = ends("DDDGDDDGDDDG")

    assert detector.steps == 3
    assert detector.boundary_name == "G.step"


def test_an_optimizer_created_late_takes_over():
    marked, detector = ends("AAAAAA" + "ABAB")

    assert marked.endswith("A|B|AB|")
    assert detector.steps == 2


def test_an_optimizer_that_left_the_loop_no_longer_ends_steps():
    marked, _ = ends("P" + "A" * 2 * PATIENCE + "AA")

    assert marked.endswith("A|A|")


def test_a_dead_optimizer_no_longer_ends_steps():
    detector, left, right = StepDetector(), Optimizer(), Optimizer()
    detector.advance(left)
    detector.advance(right)
    detector.advance(right)
    del left

    assert detector.advance(right)


def of_one_class(sequence: str) -> tuple[str, StepDetector]:
    """As `ends`, with optimizers of the same class; those of earlier letters stay alive."""
    optimizers = {letter: Optimizer() for letter in sequence}
    of_one_class.optimizers = optimizers
    detector = StepDetector()
    marked = [o + "|" if detector.advance(optimizers[o]) else o for o in sequence]
    return "".join(marked), detector


def test_the_count_goes_on_where_each_client_has_an_optimizer_of_its_own():
    marked, detector = of_one_class("AAABBBCCC")

    assert marked == "A|A|A|B|B|B|C|C|C|"
    assert detector.steps == 9


def test_another_optimizer_that_goes_on_is_reported_once():
    detector, optimizers = StepDetector(), [Optimizer(), Optimizer()]
    taken_over = []
    for optimizer in (optimizers[0], optimizers[0], optimizers[1], optimizers[1]):
        detector.advance(optimizer)
        taken_over.append(detector.is_taken_over)

    assert taken_over == [False, False, True, False]


@pytest.mark.parametrize(("sequence", "steps"), [("DGDGDGDG", 4), ("DDDGDDDGDDDG", 3)])
def test_optimizers_of_one_class_that_step_in_turns_are_counted_apart(sequence, steps):
    marked, detector = of_one_class(sequence)

    assert marked.endswith(("DG|DG|", "DDDG|"))
    assert detector.steps == steps


def test_ten_optimizers_of_one_class_in_turns_end_one_step():
    marked, detector = of_one_class("ABCDEFGHIJ" * 4)

    assert marked.endswith("ABCDEFGHIJ|" * 2)
    assert detector.steps == 4


@pytest.mark.parametrize("inner", [Optimizer, named("Inner").__class__])
def test_an_optimizer_for_each_task_within_the_steps_of_another_ends_none(inner):
    detector, outer = StepDetector(), Optimizer()
    ended = []
    for _ in range(6):
        for task in (inner(), inner()):
            ended += [detector.advance(task) for _ in range(5)]
        ended.append(detector.advance(outer))

    assert [end for end in ended[-22:] if end] == [True, True]
    assert ended[-1]
    assert detector.steps == 6


@pytest.mark.parametrize("inner", [Optimizer, named("Inner").__class__])
def test_an_optimizer_created_before_those_of_tasks_is_awaited(inner):
    detector, outer = StepDetector(), Optimizer()
    detector.announce(outer)
    for task in (inner(), inner()):
        detector.announce(task)
        detector.advance(task)
        assert detector.awaits_optimizer

    assert detector.advance(outer)
    assert (detector.steps, detector.awaits_optimizer) == (1, False)


def test_an_optimizer_of_a_later_phase_is_not_awaited_and_none_for_ever():
    detector, first, second = StepDetector(), Optimizer(), named("Second")
    detector.announce(first)
    detector.announce(second)
    detector.advance(first)
    assert not detector.awaits_optimizer

    detector, unused, used = StepDetector(), Optimizer(), named("Used")
    detector.announce(unused)
    waits = [detector.awaits_optimizer for _ in range(AWAITED) if detector.advance(used)]
    assert waits == [True] * (AWAITED - 1) + [False]


def test_nothing_is_known_before_the_first_step():
    detector = StepDetector()

    assert (detector.steps, detector.boundary, detector.boundary_name) == (0, None, None)


def turns(sequence: str) -> tuple[str, StepDetector]:
    """Mark with `|` where steps end in a sequence of models that are called, one letter each."""
    models = turns.models = {letter: named(letter) for letter in sequence}
    detector = StepDetector()
    marked = ""
    for letter in sequence:
        recurs = not detector.expect(models[letter], Kind.CALL)
        marked += "|" * (recurs and detector.advance(models[letter], Kind.CALL)) + letter
    return marked, detector


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


def test_other_optimizers_of_a_step_are_named():
    _, detector = ends("AB" * 3 + "BABBAB" * 20)

    assert detector.step_is == "everything from one A.step to the next; other optimizers: B.step (2 per step)"


def test_a_turn_is_named_by_its_model():
    _, detector = turns("AA")

    assert detector.step_is == "one call of A, until the next call"
    assert (detector.boundary_name, detector.steps) == (None, 1)


def test_what_tells_a_step_surely_wins_over_what_tells_it_less_surely():
    detector, loader, model, optimizer = StepDetector(), Optimizer(), Optimizer(), Optimizer()

    assert detector.advance(model, Kind.CALL)
    assert detector.advance(loader, Kind.BATCH)
    assert not detector.advance(model, Kind.CALL)
    assert detector.advance(optimizer)
    assert not detector.advance(loader, Kind.BATCH)
    assert (detector.boundary_name, detector.step_is) == (
        "Optimizer.step",
        "everything from one Optimizer.step to the next",
    )


def test_what_is_expected_makes_unsure_until_it_has_come_or_is_late():
    detector, loader, model = StepDetector(), Optimizer(), Optimizer()
    detector.advance(model, Kind.CALL)
    assert detector.is_sure

    detector.expect(loader, Kind.BATCH)
    assert detector.advance(model, Kind.CALL)
    assert not detector.is_sure
    for _ in range(2 * PATIENCE):
        detector.advance(model, Kind.CALL)
    assert detector.is_sure

    assert detector.advance(loader, Kind.BATCH)
    assert detector.is_sure


def test_a_long_turn_is_waited_for():
    detector, loader, model = StepDetector(), Optimizer(), Optimizer()
    ends = []
    for _ in range(3):
        ends.append(detector.advance(loader, Kind.BATCH))
        ends.extend(detector.advance(model, Kind.CALL) for _ in range(3 * PATIENCE))

    assert ends[-3 * PATIENCE :] == [False] * 3 * PATIENCE
    assert detector.boundary.kind is Kind.BATCH


def test_a_step_may_be_several_steps_of_the_optimizer():
    optimizer, detector = Optimizer(), StepDetector(every=4)
    assert [detector.advance(optimizer) for _ in range(10)].count(True) == 2
    assert detector.steps == 2


def test_marks_of_the_script_end_steps_whatever_else_repeats() -> None:
    detector, optimizer, marks = StepDetector(), named("Adam"), named("Marks")
    ends = []
    for _ in range(3):
        ends += [detector.advance(optimizer) for _ in range(4)]
        ends.append(detector.advance(marks, Kind.MARK))
    assert ends[4:] == [True, *[False] * 4, True, *[False] * 4, True]
    assert detector.steps == 3
    assert detector.step_is == "what the script marks with stepscope.step()"


@pytest.mark.parametrize("every", [1, 3])
def test_a_known_boundary_goes_on_ending_the_same_steps(every: int) -> None:
    watched, followed = StepDetector(every), StepDetector(every)
    a, b = named("A"), named("B")
    for thing in (a, b) * 6:
        assert watched.advance(thing) == followed.advance(thing)
    ended = [(watched.advance(thing), followed.repeats_boundary(thing)) for thing in (a, b) * 6]
    assert [advanced for advanced, _ in ended] == [followed for _, followed in ended]
    assert watched.steps == followed.steps


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def takes(thread: TrainingThread, kind: Kind, *, is_recording: bool = False) -> bool:
    with thread.turn(kind, is_recording=is_recording) as counts:
        return counts


def test_the_first_thread_counts_and_others_do_not() -> None:
    thread = TrainingThread()
    assert takes(thread, Kind.CALL)
    assert not in_thread(lambda: takes(thread, Kind.CALL))
    assert takes(thread, Kind.CALL)


def test_a_thread_with_an_optimizer_comes_before_one_without() -> None:
    thread = TrainingThread()
    takes(thread, Kind.CALL)
    assert in_thread(lambda: takes(thread, Kind.OPTIMIZER))
    assert not takes(thread, Kind.CALL)
    assert not takes(thread, Kind.OPTIMIZER)


def test_a_recording_stays_with_its_thread() -> None:
    thread = TrainingThread()
    takes(thread, Kind.CALL)
    assert not in_thread(lambda: takes(thread, Kind.OPTIMIZER, is_recording=True))


def test_no_thread_waits_for_another() -> None:
    thread = TrainingThread()
    with thread.turn(Kind.OPTIMIZER, is_recording=False) as counts:
        assert counts
        assert not in_thread(lambda: takes(thread, Kind.OPTIMIZER))


def test_an_action_runs_in_the_thread_as_it_ends() -> None:
    thread, ran_in = TrainingThread(), []

    def train() -> int:
        takes(thread, Kind.OPTIMIZER)
        for _ in range(3):
            thread.at_its_end(lambda: ran_in.append(threading.get_ident()))
        assert ran_in == []
        return threading.get_ident()

    assert [in_thread(train)] == ran_in


def test_the_end_of_an_earlier_thread_does_nothing() -> None:
    thread, ran_in = TrainingThread(), []

    def observe() -> None:
        takes(thread, Kind.CALL)
        thread.at_its_end(lambda: ran_in.append(threading.get_ident()))
        in_thread(lambda: takes(thread, Kind.OPTIMIZER))

    in_thread(observe)
    assert ran_in == []
