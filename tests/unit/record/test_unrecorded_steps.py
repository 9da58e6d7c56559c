"""Steps after a recording, timed with clocks that only the test advances."""

from itertools import pairwise

import pytest

from stepscope.record.part_timer import PARTS
from stepscope.record.step_times import MOST, Detail, Reading, StepReadings, UnrecordedSteps

US, MS = 1_000, 1_000_000
STEP = {"forward": 300 * US, "loss": 50 * US, "backward": 500 * US, "optimizer": 100 * US}


class Program:
    """Its steps take the times of `STEP`; a watch on calls costs `watch_ns` in each forward.

    While parts are timed, all of them take `slower` times as long. The recorder works when it asks
    for the clocks of several steps.
    """

    def __init__(self, watch_ns: int = 0, slower: float = 1.0, can_change: bool = True) -> None:
        self.elapsed, self.parts = 0, dict.fromkeys(PARTS, 0)
        self.watch_ns, self.slower, self.detail, self.changes = watch_ns, slower, Detail.CALLS, 0
        self.marks: list[Reading] = []
        self.steps = UnrecordedSteps(self, self._time_in if can_change else None)
        self.mark()

    def _time_in(self, detail: Detail) -> None:
        self.detail, self.changes = detail, self.changes + 1

    def read(self) -> Reading:
        parts = {name: (ns, ns) for name, ns in self.parts.items()}
        return Reading(self.elapsed, self.elapsed, self.elapsed, parts)

    def mark(self) -> None:
        self.marks.append(self.read())

    def readings(self) -> list[Reading]:
        self.elapsed += 7 * MS
        marks, self.marks = self.marks, []
        return marks

    def run(self, count: int, factor: float = 1.0) -> None:
        """Run steps until they are timed, at most `count`; they take `factor` times as long."""
        for _ in range(count):
            if self.steps.is_complete:
                return
            slower = self.slower if self.detail >= Detail.PARTS else 1.0
            for part, ns in STEP.items():
                self._spend(part, round(factor * slower * ns))
            if self.detail is Detail.CALLS:
                self._spend("forward", round(factor * self.watch_ns))
            self.steps.step_ended()

    def _spend(self, part: str, ns: int) -> None:
        is_call = part in ("forward", "loss")
        is_known = self.detail >= (Detail.CALLS if is_call else Detail.PARTS)
        self.parts[part if is_known else "rest"] += ns
        self.elapsed += ns


def parts_of(facts: dict) -> dict[str, int]:
    return {name: part["cpu_ns"] for name, part in facts["parts"].items() if part["cpu_ns"]}


@pytest.mark.parametrize("slower", [1.0, 1.05, 1.2])
@pytest.mark.parametrize("watch_ns", [0, 20 * US, 60 * US])
def test_timing_costs_nothing_in_the_result(watch_ns: int, slower: float) -> None:
    program = Program(watch_ns, slower)
    program.run(1000)
    facts = program.steps.describe()
    assert program.steps.is_complete
    assert parts_of(facts) == pytest.approx(STEP, abs=2)
    assert facts["median_ns"] == facts["cpu_ns"] == pytest.approx(sum(STEP.values()), abs=2)


def test_steps_that_are_timed_as_a_whole_do_not_stretch_the_parts() -> None:
    """Other work made them longer."""
    program = Program(slower=0.8)
    program.run(1000)
    found = parts_of(program.steps.describe())
    assert found == {part: 0.8 * ns for part, ns in STEP.items()}


def test_steps_that_still_become_shorter_are_not_timed() -> None:
    program = Program()
    for factor in (2.0, 1.8, 1.6, 1.4, 1.2, 1.1):
        program.run(5, factor)
    program.run(1000)
    assert parts_of(program.steps.describe()) == STEP


def test_waiting_ends_in_a_run_that_becomes_faster_for_ever() -> None:
    program = Program()
    for step in range(400):
        program.run(1, 50.0 * 0.95**step)
    assert program.steps.is_complete


@pytest.mark.parametrize("count", [3, 12, 15, 19, 25])
def test_a_run_that_ends_soon_has_its_last_steps(count: int) -> None:
    program = Program()
    program.run(count)
    facts = program.steps.describe()
    assert not program.steps.is_complete
    assert facts["count"] == min(count, MOST)
    assert parts_of(facts) == STEP


def test_a_watch_that_ends_the_steps_stays_on() -> None:
    program = Program(20 * US, can_change=False)
    program.run(1000)
    assert parts_of(program.steps.describe()) == {**STEP, "forward": STEP["forward"] + 20 * US}
    assert program.changes == 0


def test_noise_cannot_take_away_more_than_a_third_of_the_forward_pass() -> None:
    """Other work made the steps with a watch longer."""
    program = Program(200 * US)
    program.run(1000)
    assert parts_of(program.steps.describe())["forward"] >= 0.7 * STEP["forward"]


def test_steps_of_very_different_lengths_stay_longer_than_nothing() -> None:
    """Batches from workers that are started again: most steps wait, a few take no time."""
    program = Program(200 * US)
    for step in range(1000):
        program.run(1, 0.01 if step % 5 == 0 else 1.0)
    facts = program.steps.describe()
    lengths = [facts[name] for name in ("p10_ns", "median_ns", "p90_ns")]
    assert 0 < lengths[0] < lengths[1] <= lengths[2]


class Apart:
    """Host and device by turns, as `DeviceTimes`, over two steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.calls.count("end") == 2

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append("end")

    def describe(self) -> dict[str, list[int]]:
        return {"host_ns": [1], "device_ns": [2]}


def test_host_and_device_come_apart_at_the_end_and_change_nothing_else() -> None:
    alone, both = Program(), Program()
    both.steps._apart = Apart()
    for program in (alone, both):
        program.run(1000)
    assert both.steps._apart.calls == ["begin", "end", "begin", "end"]
    assert both.detail is Detail.STEP
    facts, plain = both.steps.describe(), alone.steps.describe()
    assert facts.pop("apart") == {"host_ns": [1], "device_ns": [2]}
    for described in (facts, plain):
        described.pop("queued_ns")  # of this machine, which may be busy
    assert facts == plain


def test_steps_without_measured_cpu_time_are_a_kind() -> None:
    """As by a clock that advances each 16 ms."""
    steps = StepReadings(queued=lambda: None)
    ends = [
        Reading(10 * MS * number, cpu, cpu, {}) for number, cpu in enumerate([0, 0, 0, 0, 16 * MS, 16 * MS])
    ]
    steps.steps = list(pairwise(ends))
    facts = steps.describe_kinds()
    assert facts is not None
    assert [kind["count"] for kind in facts["kinds"]] == [4, 1]
