"""Which optimizer each run of a stage works for, in loops with several."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import updates_table
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

_PASSES = ("zero_grad", "forward", "loss", "backward")


class Loop:
    """Draws steps of a loop, and notes the CPU time of each stage of each update, µs."""

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.lines = random.Random(seed), 0, []
        self.truth: dict[tuple[str, str], int] = {}
        self.modules: dict[tuple[str, str, str], int] = {}
        self.sequence = 0

    def step(self, number: int, schedule: list[tuple[str, ...]]) -> None:
        """One step: for each entry of `schedule` passes, then steps of its optimizers in turn."""
        begun, place = self.now, len(self.lines)
        for names in schedule:
            joint = ", ".join(dict.fromkeys(names))
            self._passes(joint)
            for name in names:
                step = f"stepscope.optimizer: {name}", "Optimizer.step#Adam.step"
                self._event("optimizer", name, *step)
        self.lines.insert(place, f"main | {begun} {self.now} | ProfilerStep#{number}")

    def _passes(self, joint: str) -> None:
        self._event("zero_grad", joint, "Optimizer.zero_grad#Adam.zero_grad")
        models = self.random.sample(["gen", "critic", "encoder"], self.random.randint(1, 3))
        first = self.sequence
        for model in models:
            call = f"stepscope.module: {model}", f"aten::mm | seq={self.sequence}"
            length = self._event("forward", joint, *call)
            self._add(self.modules, (joint, model, "forward"), length)
            self.sequence += 1
        self._event("loss", joint, f"aten::mse_loss | seq={self.sequence}")
        self._event("backward", joint, f"MseLossBackward0 | seq={self.sequence} fwd=1")
        for place, model in reversed(list(enumerate(models))):
            length = self._event("backward", joint, f"MmBackward0 | seq={first + place} fwd=1")
            self._add(self.modules, (joint, model, "backward"), length)
        self.sequence += 1

    def _event(self, stage: str, optimizer: str, *names: str) -> int:
        """One event inside the other, of equal length."""
        length = self.random.randint(5, 40)
        self.lines += [f"main | {self.now} {self.now + length} | {name}" for name in names]
        self.now += length
        self._add(self.truth, (optimizer, stage), length)
        return length

    def _add(self, table: dict, key: tuple, length: int) -> None:
        table[key] = table.get(key, 0) + length

    def trace(self) -> Trace:
        return annotate(drawn_trace("\n".join(self.lines)))


def spent(trace: Trace) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in trace["stages"].rows():
        if row["optimizer"] is not None:
            key = row["optimizer"], row["stage"]
            found[key] = found.get(key, 0) + round(row["cpu_ns"] / 1000)
    return found


SCHEDULES = {
    "dcgan": [("d",), ("g",)],
    "wgan, five steps of the critic": [("c",)] * 5 + [("g",)],
    "actor and critic after one pass": [("actor", "critic")],
    "sparse and dense": [("embedding", "rest")],
    "three losses": [("d_a", "d_b"), ("g",)],
    "one optimizer": [("only",)],
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_passes_count_for_the_step_that_they_lead_to(schedule: list[tuple[str, ...]]) -> None:
    loop = Loop(0)
    for number in range(3):
        loop.step(number, schedule)
    assert spent(loop.trace()) == loop.truth


@pytest.mark.parametrize("seed", range(200))
def test_any_schedule(seed: int) -> None:
    """Optimizers that step each time or now and then, alone or together, in any order."""
    choose = random.Random(seed)
    names = choose.sample(["a", "b", "c", "d"], choose.randint(2, 4))
    kinds = [tuple(choose.sample(names, choose.randint(1, min(2, len(names))))) for _ in range(3)]
    loop = Loop(seed)
    for number in range(4):
        loop.step(number, [choose.choice(kinds) for _ in range(choose.randint(3, 5))])
    trace = loop.trace()
    assert spent(trace) == loop.truth
    check_report(trace, loop)


def check_report(trace: Trace, loop: Loop) -> None:
    updates = summarize(trace).updates
    if len({name for name, _ in loop.truth}) < 2:
        assert updates == []
        return
    found = {
        (update.optimizer, stage.stage): round(stage.cpu_ms * 4000)
        for update in updates
        for stage in update.stages
    }
    assert found == loop.truth
    for update in updates:
        for model in update.models:
            for phase in ("forward", "backward"):
                true = loop.modules.get((update.optimizer, model.path, phase), 0)
                assert round(getattr(model, f"{phase}_cpu_ms") * 4000) == true


def test_without_our_ranges_the_class_is_the_name() -> None:
    lines = []
    for place, kind in enumerate(("Adam", "SGD", "Adam", "SGD")):
        at = 100 * place
        lines += [
            f"main | {at} {at + 20} | aten::mm | seq={place}",
            f"main | {at + 30} {at + 60} | MmBackward0 | seq={place} fwd=1",
            f"main | {at + 60} {at + 90} | Optimizer.step#{kind}.step",
        ]
    lines += ["main | 0 200 | ProfilerStep#0", "main | 200 400 | ProfilerStep#1"]
    trace = annotate(drawn_trace("\n".join(lines)))
    of_stage = [(row["optimizer"], row["stage"]) for row in trace["stages"].rows()]
    assert [key for key, _ in groupby(of_stage) if key[1] == "backward"] == [
        ("Adam", "backward"),
        ("SGD", "backward"),
    ] * 2


def test_a_pass_that_no_step_follows_is_of_no_optimizer() -> None:
    trace = annotate(
        drawn_trace("""
        main |  0 200 | ProfilerStep#0
        main |  0  20 | aten::mm | seq=1
        main | 20  40 | MmBackward0 | seq=1 fwd=1
        main | 40  60 | stepscope.optimizer: a
        main | 60  90 | stepscope.module: net
        main | 61  80 | aten::mm | seq=2
    """)
    )
    last = [row["optimizer"] for row in trace["stages"].rows() if row["start_ns"] >= 60_000]
    assert set(last) == {None}


def test_of_many_optimizers_the_longest_are_split_and_the_first_are_shown() -> None:
    loop = Loop(51)
    loop.step(1, [(f"net{number}",) for number in range(80)])
    summary = summarize(loop.trace())
    updates = sorted(summary.updates, key=lambda update: -update.cpu_ms)
    assert [bool(update.models) for update in updates] == [True] * 64 + [False] * 16
    table = updates_table(summary)
    assert table.row_count - sum(len(u.models) for u in summary.updates[:32] if len(u.models) > 1) == 33
    assert [*table.columns[0].cells][-1] == "and 48 more optimizers"
