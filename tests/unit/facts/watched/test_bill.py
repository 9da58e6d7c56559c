"""The bill of drawn runs: losses, slow steps with their causes, and the slow rank."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct

from stepscope.base import watch_format as layout
from stepscope.base.watch_format import LOADER_WORKER
from stepscope.facts.watched import FIELDS, Bill, Loss, bill_of, slow_rank, verdict_of
from stepscope.read.watched_run import SampledLine, WatchedRun, read_watched_run
from stepscope.record.watch.watch_file import WatchFile

HELD_UP = "other threads of the process worked while the training thread waited, for the GIL or for them"
S = 1_000_000_000
START_S = 4
STEPS = 1000
PLACES = [
    {
        "kind": "checkpoint",
        "function": "save",
        "file": "/run/train.py",
        "line": 30,
        "count": 2,
        "total_ns": 3 * S,
    },
    {"kind": "compile", "function": "main", "file": "/run/train.py", "line": 7, "count": 1, "total_ns": S},
]


def drawn_run(
    path: Path, more: dict[int, dict[str, float]] | None = None, seed: int = 0, **facts: Any
) -> WatchedRun:
    """1,000 steps of about 20 ms from second 4 on; `more` adds ms to some, and to their parts."""
    rng, file, at_ns = np.random.default_rng(seed), WatchFile(path), 0
    for number in range(STEPS):
        times = {"backward": 8.0, "cpu": 15.0, "input": float(rng.uniform(1, 2))}
        wall = 18 + times["input"] + float(rng.normal(0, 0.3))
        for name, ms in (more or {}).get(number, {}).items():
            wall += ms
            if name in layout.TIMES:
                times[name] = times.get(name, 0) + ms
        row = [number, at_ns, round(wall * 1e6), *(times.get(name, 0.0) for name in layout.TIMES)]
        file.add_step(tuple(row))
        at_ns += round(wall * 1e6)
    file.put_text({"created_unix_ns": S, "begun_unix_ns": (1 + START_S) * S, "places": [], **facts})
    file.flush()
    return read_watched_run(path)


@pytest.mark.parametrize(
    ("parts", "least_s", "most_s"),
    [
        pytest.param({"input": 20.0, "checkpoint": 20.0}, 8, 8, id="one after the other"),
        pytest.param({"gc": 20.0, "queued": 20.0}, 4, 8, id="perhaps at once"),
        pytest.param({"input": 20.0, "gc": 50.0}, 8, 8, id="no more than the step"),
    ],
)
def test_the_run_without_its_first_losses(
    tmp_path: Path, parts: dict[str, float], least_s: float, most_s: float
) -> None:
    """Of 200 steps of 40 ms, the whole step at most; what came before the first step counts in full."""
    file = WatchFile(tmp_path / "run.watch")
    for number in range(200):
        file.add_step((number, number * 40_000_000, 40_000_000, *(parts.get(n, 0.0) for n in layout.TIMES)))
    saves = [{**PLACES[0], "total_ns": 4 * S}] if "checkpoint" in parts else []
    file.put_text({"created_unix_ns": S, "begun_unix_ns": 2 * S, "places": saves})
    file.flush()
    run = replace(read_watched_run(tmp_path / "run.watch"), updated_unix_ns=11 * S)
    bill = bill_of(run)
    saved = [bill.run_s - left for left in reversed(bill.without_first_s)]
    assert [loss.cause for loss in bill.losses[:3]].count("start, with the first step") == 1
    assert saved == pytest.approx([least_s + 1, most_s + 1])


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("input", "waiting for data"),
        ("gc", "garbage collection"),
        ("compile", "compilation"),
        ("queued", "other processes had the training thread's core"),
        ("collective", "waiting in collectives"),
        ("threads", "more work of other threads of the process"),
        ("device_backward", "longer backward passes of the device"),
        ("device_optimizer", "longer optimizer steps of the device"),
        ("cpu", "more work of the training thread"),
        ("backward", "longer backward passes"),
        ("optimizer", "longer optimizer steps"),
        ("sleep", "the training thread waited, for what is not known"),
    ],
)
def test_slow_steps_have_their_cause(tmp_path: Path, part: str, cause: str) -> None:
    run = drawn_run(tmp_path / "run.watch", {number: {part: 20.0} for number in range(400, 430)})
    (slow,) = bill_of(run).slow
    assert (slow.first, slow.last, slow.count, slow.cause) == (400, 429, 30, cause)
    assert slow.ratio == pytest.approx(2, rel=0.05)
    assert slow.lost_s == pytest.approx(0.6, rel=0.05)
    assert slow.cause_ms == pytest.approx(0 if part == "sleep" else 20, abs=1)


@pytest.mark.parametrize(
    ("part", "more_ms", "steps", "is_told"),
    [
        pytest.param("cpu", 12.0, 100, False, id="equal work on a shared core"),
        pytest.param("cpu", 18.0, 100, True, id="slower than a shared core"),
        pytest.param("gc", 6.0, 100, True, id="measured, half a second"),
        pytest.param("gc", 6.0, 30, False, id="measured, less than a quarter"),
        pytest.param("gc", 60.0, 1, True, id="one step"),
    ],
)
def test_what_a_machine_does_to_equal_work_is_not_told(
    tmp_path: Path, part: str, more_ms: float, steps: int, is_told: bool
) -> None:
    run = drawn_run(tmp_path / "run.watch", {number: {part: more_ms} for number in range(400, 400 + steps)})
    assert [(slow.first, slow.count) for slow in bill_of(run).slow] == [(400, steps)] * is_told


@pytest.mark.parametrize("grows", [True, False])
def test_work_that_grows_over_the_run_is_said_to_grow(tmp_path: Path, grows: bool) -> None:
    """By 40 us in each step, as of a list that is searched; or by 20 ms at once."""
    more = {number: {"gc": 0.04 * number if grows else 20.0 * (number >= 500)} for number in range(STEPS)}
    run = drawn_run(tmp_path / "run.watch", more)
    (slow,) = bill_of(run).slow
    assert slow.last == STEPS - 1
    assert slow.grows_to == pytest.approx(2.4 if grows else 0.0, abs=0.2)
    assert ("growing to 2." in verdict_of(bill_of(run))) is grows


def test_others_who_have_the_core_hide_no_slow_steps(tmp_path: Path) -> None:
    """They have it for 10 to 40 ms of steps 300 to 499, in which steps 400 to 429 collect garbage."""
    queued = np.random.default_rng(1).uniform(10, 40, STEPS)
    more = {number: {"queued": float(queued[number])} for number in range(300, 500)}
    for number in range(400, 430):
        more[number]["gc"] = 20.0
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert sorted((steps.first, steps.last, steps.cause) for steps in slow) == [
        (300, 399, "other processes had the training thread's core"),
        (400, 429, "garbage collection"),
        (430, 499, "other processes had the training thread's core"),
    ]


def test_stretches_in_which_others_have_the_core_more_and_less_are_two(tmp_path: Path) -> None:
    """For 60 ms of steps 300 to 339 and 10 ms of the next; the thread's own work is slower in both."""
    more = {number: {"queued": 60.0 if number < 340 else 10.0, "cpu": 4.0} for number in range(300, 500)}
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert [(steps.first, steps.last, steps.cause) for steps in slow] == [
        (300, 339, "other processes had the training thread's core"),
        (340, 499, "other processes had the training thread's core"),
    ]


@pytest.mark.parametrize(
    ("sleeps", "cause"), [(0.9, "waiting for data"), (0.1, "other processes had the training thread's core")]
)
def test_workers_that_sleep_are_waited_for_whoever_has_the_core(
    tmp_path: Path, sleeps: float, cause: str
) -> None:
    """For 20 ms of steps 400 to 439, in which others have the core as long."""
    run = drawn_run(tmp_path / "run.watch", {at: {"input": 20.0, "queued": 20.0} for at in range(400, 440)})
    begins, walls = run.steps["begin_ns"], run.steps["wall_ns"]
    shares = (np.arange(10) + 0.5) / 10
    samples = [
        (int(begins[number] + share * walls[number]), 0, int(share < sleeps))
        for number in range(400, 440)
        for share in shares
    ]
    lines = [SampledLine("decode", "/run/data.py", 5, LOADER_WORKER)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    (slow,) = bill_of(run).slow
    assert (slow.first, slow.last, slow.cause) == (400, 439, cause)


@pytest.mark.parametrize(
    ("usual_ms", "more", "cause"),
    [
        (0, {"queued": 20, "threads": 40}, "other threads of the process had the training thread's core"),
        (0, {"queued": 20, "threads": 8}, "other processes had the training thread's core"),
        (20, {"queued": 20, "threads": 0}, "other processes had the training thread's core"),
        (20, {"sleep": 20, "threads": 20}, "the training thread waited, for what is not known"),
        (20, {"threads": 20, "wait": 20}, "the training thread waited, for what is not known"),
        (0, {"threads": 20, "wait": 0}, "more work of other threads of the process"),
    ],
)
def test_other_threads_of_the_process(
    tmp_path: Path, usual_ms: float, more: dict[str, float], cause: str
) -> None:
    """Those that work all the time do so longer in a step of 40 ms than in one of 20."""
    every = {number: {"threads": float(usual_ms), "wall": -float(usual_ms)} for number in range(STEPS)}
    for number in range(400, 430):
        every[number] = {name: float(ms) for name, ms in more.items()}
        every[number]["threads"] += usual_ms
        every[number]["wall"] = 20.0 - sum(every[number].values())
    (slow,) = bill_of(drawn_run(tmp_path / "run.watch", every)).slow
    assert (slow.first, slow.last, slow.cause) == (400, 429, cause)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"input": 20, "cpu": 18}, "preparing data in the training thread"),
        ({"input": 20}, "waiting for data"),  # of a disk, or of workers
        ({"input": 20, "threads": 19}, HELD_UP),
        ({"input": 4, "threads": 19}, HELD_UP),
        ({"input": 20, "cpu": 8, "threads": 60}, HELD_UP),
        ({"cpu": 18, "threads": 60}, "more work of the training thread"),  # with a pool of threads
        ({"backward": 20, "threads": 19}, "more work of other threads of the process"),  # of autograd
        ({"input": 20, "threads": 19, "optimizer": -1}, "waiting for data"),
        ({"threads": 19, "optimizer": -1}, "more work of other threads of the process"),  # of JAX
    ],
)
def test_cpu_times_tell_who_kept_the_training_thread(
    tmp_path: Path, more: dict[str, float], cause: str
) -> None:
    """Of 20 ms more in each of 30 steps, whose optimizers take 1 ms, none in JAX."""
    every = {number: {"optimizer": 1.0 + min(more.get("optimizer", 0), 0)} for number in range(STEPS)}
    for number in range(400, 430):
        times = {name: float(ms) for name, ms in more.items() if name != "optimizer"}
        every[number] |= times | {"wall": 20.0 - sum(times.values())}
    (slow,) = bill_of(drawn_run(tmp_path / "run.watch", every)).slow
    assert (slow.first, slow.last, slow.cause) == (400, 429, cause)


OTHERS, UNKNOWN, GARBAGE = (
    "other processes had the training thread's core",
    "the training thread waited, for what is not known",
    "garbage collection",
)


@pytest.mark.parametrize(("queued", "cause"), [(40.0, OTHERS), (2.0, UNKNOWN)])
def test_waits_that_others_explain_are_put_down_to_them(tmp_path: Path, queued: float, cause: str) -> None:
    """What the thread waits for may have as little of a core as the thread, which has it for 15 ms."""
    more = {number: {"queued": queued, "sleep": 20.0} for number in range(400, 430)}
    (slow,) = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert (slow.first, slow.last, slow.cause, slow.where) == (400, 429, cause, "")


@pytest.mark.parametrize(("gc_ms", "causes"), [(0.0, {OTHERS}), (2.0, {OTHERS}), (9.0, {GARBAGE})])
def test_a_little_more_of_what_is_measured_hides_nobody_who_has_the_core(
    tmp_path: Path, gc_ms: float, causes: set[str]
) -> None:
    """Without the time of others the steps are a little longer, as on a core that is shared."""
    more = {number: {"queued": 25.0, "gc": gc_ms} for number in range(400, 430)}
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert {steps.cause for steps in slow} == causes


@pytest.mark.parametrize(("queued", "causes"), [(10.0, {OTHERS}), (0.0, {UNKNOWN})])
def test_a_single_wait_among_steps_without_a_core_is_put_down_to_others(
    tmp_path: Path, queued: float, causes: set[str]
) -> None:
    more = {number: {"queued": queued} for number in range(80, 120)} | {100: {"sleep": 80.0}}
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert {steps.cause for steps in slow} == causes


@pytest.mark.parametrize(
    ("queued", "where"), [(10.0, "main at train.py:9"), (60.0, "")], ids=["little of it", "most of it"]
)
def test_the_line_of_waits_is_named_where_others_explain_less_than_half(
    tmp_path: Path, queued: float, where: str
) -> None:
    """Of step 100, which waits at line 9 for 90 ms more; every other step near it waits 8 ms for a core."""
    more = {number: {"queued": 8.0} for number in range(80, 120, 2)}
    more[100] = {"queued": queued, "wall": 90.0 - queued}
    run = drawn_run(tmp_path / "run.watch", more)
    begin, end = run.steps["begin_ns"][[0, 100]], run.steps["begin_ns"][[-1, 101]]
    times = range(int(begin[0]), int(end[0]), S // 200)
    samples = [(ns, int(begin[1] <= ns < end[1]), 0) for ns in times]
    lines = [SampledLine("main", "/run/train.py", line) for line in (8, 9)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    (slow,) = bill_of(run).slow
    assert (slow.cause, slow.where) == (OTHERS, where)


@pytest.mark.parametrize(
    ("at_decode", "expected"),
    [(0.75, ("decode at data.py:5", 28.0)), (0.1, ("", 0.0))],  # of the slow steps; in others 10 %
)
def test_the_line_that_explains_half_of_slow_steps_is_named(
    tmp_path: Path, at_decode: float, expected: tuple[str, float]
) -> None:
    run = drawn_run(tmp_path / "run.watch", {number: {"sleep": 20.0} for number in range(400, 430)})
    begins, walls = run.steps["begin_ns"], run.steps["wall_ns"]
    samples = []
    for number in range(STEPS):
        share = at_decode if 400 <= number < 430 else 0.1
        times = begins[number] + (np.arange(20) + 0.5) / 20 * walls[number]
        samples += [(int(ns), 0 if at < 20 * share else 1 + at % 4, 0) for at, ns in enumerate(times)]
    lines = [SampledLine("decode", "/run/data.py", 5)]
    lines += [SampledLine("main", "/run/train.py", number) for number in range(4)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    (slow,) = bill_of(run).slow
    assert (slow.where, slow.where_ms) == (expected[0], pytest.approx(expected[1], abs=1))
    assert slow.cause.endswith("waited" if expected[0] else "not known")


def test_a_line_of_workers_is_named_where_steps_wait_for_data(tmp_path: Path) -> None:
    """Two workers read for 9 ms and decode for 1 ms; in slow steps, decoding takes 60 ms."""
    run = drawn_run(tmp_path / "run.watch", {number: {"input": 25.0} for number in range(400, 430)})
    begins, walls = run.steps["begin_ns"], run.steps["wall_ns"]
    samples = []
    for number in range(STEPS):
        decoding = 60 / 69 if 400 <= number < 430 else 0.1  # of the time in which workers work
        for share in (np.arange(20) + 0.5) / 20:
            ns = int(begins[number] + share * walls[number])
            samples += [(ns, 2, 0), (ns, 1 if share < decoding else 0, 0)]
    lines = [SampledLine("read", "/run/data.py", 3, LOADER_WORKER)]
    lines += [SampledLine("decode", "/run/data.py", 5, LOADER_WORKER)]
    lines += [SampledLine("main", "/run/train.py", 9)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    (slow,) = bill_of(run).slow
    assert (slow.cause, slow.where) == ("waiting for data", "decode at data.py:5 (worker)")
    assert slow.where_ms == pytest.approx(25, abs=3)
    (other,) = bill_of(replace(run, steps=with_cause(run.steps, "input", "gc"))).slow
    assert (other.cause, other.where) == ("garbage collection", "main at train.py:9")


@pytest.mark.parametrize(
    ("sleeping", "limits"),  # of the trainer, actors and judges: how many of ten samples
    [((6, 1, 9), "actor"), ((0, 9, 4), "training"), ((5, 5, 5), ""), ((1, 1, 9), "")],
)
def test_what_each_role_waits_for_and_who_limits_the_run(
    tmp_path: Path, sleeping: tuple[int, ...], limits: str
) -> None:
    """Every role is at one line as it sleeps, and at another as it works."""
    run = drawn_run(tmp_path / "run.watch", {}, processes={"actor": 4, "judge": 1})
    roles, begin = ("", "actor", "judge"), int(run.totals["begin_ns"])
    lines = [SampledLine(name, "/x/rl.py", 1, role) for role in roles for name in ("get", "work")]
    samples = [
        (begin + 1_000_000 * (3 * at + role), 2 * role + (at % 10 >= sleep), at % 10 < sleep)
        for at in range(1000)
        for role, sleep in enumerate(sleeping)
    ]
    bill = bill_of(replace(run, lines=lines, samples=np.array(samples, run.samples.dtype)))
    assert bill.limiting_role == limits
    assert verdict_of(bill).endswith(f" Role {limits} limits the run: the others wait.") == bool(limits)
    found = {role.role: role for role in bill.roles}
    for name, sleep, processes in zip(("training", "actor", "judge"), sleeping, (1, 4, 1), strict=True):
        assert found[name].waits == pytest.approx(sleep / 10, abs=0.01)
        assert found[name].waits_at == ("get at rl.py:1" if sleep else "")
        assert (found[name].works_at, found[name].processes) == ("work at rl.py:1", processes)


def test_workers_in_phase_make_a_stretch_in_which_one_of_two_steps_waits(tmp_path: Path) -> None:
    more = {number: {"input": 60.0} for number in range(400, 460, 2)}
    (slow,) = bill_of(drawn_run(tmp_path / "run.watch", more, worker_starts={"workers": 2})).slow
    assert (slow.first, slow.last, slow.cause) == (400, 459, "waiting for data")
    assert slow.cause_ms == pytest.approx(30, abs=1)


def test_what_the_device_reports_of_slow_steps_only(tmp_path: Path) -> None:
    run = drawn_run(tmp_path / "run.watch", {number: {"sleep": 20.0} for number in range(400, 600)})
    begins = run.steps["begin_ns"] + 1

    def said(clock: float, reasons: int, retries: int, usual_reasons: int = 0) -> str:
        device = np.zeros(STEPS, [(name, "<f8") for name in layout.DEVICE])
        device["ns"], device["clock"], device["reasons"] = begins, 1980, usual_reasons
        device["clock"][400:600], device["reasons"][400:600] = clock, reasons
        device["retries"][500:] = retries
        (slow,) = bill_of(replace(run, device=device)).slow
        return slow.device

    assert said(1400, 0x40, 0) == "the clock fell from 1.98 to 1.40 GHz: thermal throttling"
    assert said(1400, 0x04, 0) == "the clock fell from 1.98 to 1.40 GHz: its power limit"
    assert said(1400, 0x01, 0) == ""  # it was idle
    assert said(1979, 0x04, 0) == ""  # as fast, as far as one sees
    assert said(1400, 0x40, 0, usual_reasons=0x40) == ""
    assert said(1980, 0x00, 2) == "the allocator gave memory back 2 times to get some"


def test_what_the_allocator_did_between_single_slow_steps_is_not_said_of_them(tmp_path: Path) -> None:
    run = drawn_run(tmp_path / "run.watch", {100: {"gc": 50.0}, 700: {"gc": 50.0}})
    device = np.zeros(STEPS, [(name, "<f8") for name in layout.DEVICE])
    device["ns"], device["retries"][300:] = run.steps["begin_ns"] + 1, 2
    (slow,) = bill_of(replace(run, device=device)).slow
    assert (slow.numbers, slow.device) == ([100, 700], "")


def with_cause(steps: Any, part: str, cause: str) -> Any:
    """The same steps, with the times of one part as those of another."""
    steps = steps.copy()
    steps[cause], steps[part] = steps[part], 0
    return steps


def test_the_starts_of_workers_are_a_loss(tmp_path: Path) -> None:
    starts = {"starts": 3, "starting_ns": S, "first_ns": S // 2}
    losses = {
        loss.cause: loss for loss in bill_of(drawn_run(tmp_path / "r.watch", worker_starts=starts)).losses
    }
    starting = losses["data loaders starting their workers"]
    assert (starting.lost_s, starting.where) == (1.5, "3 times")


def test_workers_may_have_started_before_the_first_step(tmp_path: Path) -> None:
    """Which is 4 s after the start of the program; loading takes 1.5 s."""
    starts = {"starts": 1, "starting_ns": 3 * S, "first_ns": 0}
    run = drawn_run(tmp_path / "run.watch", worker_starts=starts)
    bill = bill_of(replace(run, updated_unix_ns=run.facts.created_unix_ns + 24 * S))
    assert bill.without_first_s == pytest.approx((24 - 4 - 3 - 1.5, 24 - 4 - 1.5), abs=0.1)


def test_lines_after_the_last_step_are_none_of_the_steps(tmp_path: Path) -> None:
    """A test that takes four times as long as the steps follows them."""
    run = drawn_run(tmp_path / "run.watch")
    taken_s = 1e-9 * float(run.totals["wall_ns"])
    lines = [SampledLine("train", "/run/train.py", 5), SampledLine("test", "/run/train.py", 9)]
    samples = [(round(at * taken_s * 1e7), int(at >= 100), 0) for at in range(500)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    (line,) = bill_of(run).lines
    assert (line.where, line.lost_s) == ("train at train.py:5", pytest.approx(taken_s))


def test_a_rollout_is_no_evaluation(tmp_path: Path) -> None:
    """Of 100 ms in every tenth step; what it takes is known of each step."""
    place = {**PLACES[0], "kind": "rollout", "function": "collect", "count": 100, "total_ns": 10 * S}
    more = {number: {"evaluation": 100.0} for number in range(0, STEPS, 10)}
    run = drawn_run(tmp_path / "run.watch", more, places=[place])
    bill = bill_of(replace(run, updated_unix_ns=run.facts.created_unix_ns + 34 * S))
    assert (bill.losses[0].cause, bill.losses[0].where) == (
        "rollout or generation",
        "collect at train.py:30, 100 times",
    )
    assert bill.without_first_s == pytest.approx([34 - 10 - 4 - 1.5] * 2, abs=0.1)


def test_single_slow_steps_are_summed_by_cause(tmp_path: Path) -> None:
    more = {100: {"gc": 50.0}, 300: {"input": 60.0}, 700: {"gc": 50.0}}
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert [(steps.first, steps.last, steps.count, steps.cause) for steps in slow] == [
        (100, 700, 2, "garbage collection"),
        (300, 300, 1, "waiting for data"),
    ]


def test_the_numbers_of_slow_steps_that_are_apart_are_known(tmp_path: Path) -> None:
    more = {100: {"gc": 50.0}, 700: {"gc": 50.0}} | {number: {"cpu": 20.0} for number in range(400, 430)}
    slow = bill_of(drawn_run(tmp_path / "run.watch", more)).slow
    assert {steps.cause: steps.numbers for steps in slow} == {
        "garbage collection": [100, 700],
        "more work of the training thread": [],
    }


@pytest.mark.parametrize(
    ("more", "facts", "verdict"),
    [
        (
            {number: {"sleep": 20.0} for number in range(400, 430)},
            {"places": PLACES},
            "4 s start, with the first step. Then 3 s checkpoints, save at train.py:30; "
            "1.5 s waiting for data. Steps 400 to 429 took 2.02 times the usual: "
            "the training thread waited, for what is not known.",
        ),
        ({}, {}, "4 s start, with the first step. Then 1.5 s waiting for data. No step was unusually slow."),
        (
            {},
            {"out_of_memory": "cuda:0: 4.00 GiB were requested at a.py:9"},
            "Out of memory on cuda:0. The allocation: 4.00 GiB were requested at a.py:9.",
        ),
    ],
)
def test_the_verdict_begins_with_the_first_loss_and_ends_with_slow_steps(
    tmp_path: Path, more: dict[int, dict[str, float]], facts: dict[str, Any], verdict: str
) -> None:
    run = drawn_run(tmp_path / "run.watch", more, **facts)
    ended = replace(run, updated_unix_ns=run.facts.created_unix_ns + 60 * S)
    assert verdict_of(bill_of(ended)).removeprefix("Of 1 min: ") == verdict


@pytest.mark.parametrize(
    "cause", [*FIELDS, "start, with the first step", "data loaders starting their workers"]
)
@pytest.mark.parametrize("where", ["", "main at train.py:30, 2 times", "f at my file of 5 words.py:7, once"])
def test_the_title_of_a_run_has_at_most_twelve_words(drawn_bill: Bill, cause: str, where: str) -> None:
    losses = [Loss(cause, lost_s, 0.3, where) for lost_s in (4321.0, 1234.0)]
    bill = replace_struct(drawn_bill, run_s=8000.0, losses=losses)
    title, *others = re.split(r"(?<=[.]) (?=[A-Z])", verdict_of(bill))
    assert title.startswith(f"Of 2.22 h: 72 min {cause}")
    assert len(title.split()) <= 12, title
    assert others[0].startswith(f"Then 20.6 min {cause}{', ' if where else ''}{where.partition(', ')[0]}")


@pytest.fixture(scope="module")
def drawn_bill(tmp_path_factory: pytest.TempPathFactory) -> Bill:
    return bill_of(drawn_run(tmp_path_factory.mktemp("run") / "run.watch"))


def test_evaluation_and_checkpoints_make_no_step_slow(tmp_path: Path) -> None:
    more = {number: {"evaluation": 500.0, "checkpoint": 90.0} for number in range(99, STEPS, 100)}
    assert bill_of(drawn_run(tmp_path / "run.watch", more)).slow == []


def test_the_bill_names_each_loss_by_its_line(tmp_path: Path) -> None:
    run = drawn_run(tmp_path / "run.watch", {500: {"compile": 1000.0}}, places=PLACES)
    losses = {loss.cause: (round(loss.lost_s, 1), loss.where) for loss in bill_of(run).losses}
    assert losses == {
        "start, with the first step": (4.0, ""),
        "checkpoints": (3.0, "save at train.py:30, 2 times"),
        "waiting for data": (1.5, ""),
        "compilation": (1.0, "main at train.py:7, once"),
    }


def test_long_collections_are_named_by_their_line_and_the_rest_is_one_loss(tmp_path: Path) -> None:
    """Two collections of 1 s in a line of the program, and 0.5 s elsewhere."""
    place = {**PLACES[1], "kind": "gc", "count": 2, "total_ns": 2 * S}
    run = drawn_run(tmp_path / "run.watch", {500: {"gc": 2500.0}}, places=[place])
    losses = [loss for loss in bill_of(run).losses if loss.cause == GARBAGE]
    assert [(round(loss.lost_s, 3), loss.where) for loss in losses] == [
        (2, "main at train.py:7, 2 times"),
        (0.5, ""),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_few_samples_are_enough_for_a_line_of_each_step(tmp_path: Path, seed: int) -> None:
    """Of 220 samples at random the time of half a step is known to 7 %, and by where they fall to 2 %."""
    run = drawn_run(tmp_path / "run.watch")
    begins, walls = run.steps["begin_ns"], run.steps["wall_ns"]
    taken_ns = int(walls.sum())
    times = np.sort(np.random.default_rng(seed).integers(0, taken_ns, 220))
    at = np.searchsorted(begins, times, side="right") - 1
    is_first = times - begins[at] < 0.45 * walls[at]
    samples = [(int(ns), int(first), 0) for ns, first in zip(times, is_first, strict=True)]
    lines = [SampledLine("main", "/run/train.py", 9), SampledLine("log", "/run/train.py", 5)]
    run = replace(run, lines=lines, samples=np.array(samples, run.samples.dtype))
    logged = next(line for line in bill_of(run).lines if line.where == "log at train.py:5")
    assert logged.lost_s == pytest.approx(0.45e-9 * taken_ns, rel=0.05)


@pytest.mark.parametrize(("share", "where"), [(0.9, "index at data.py:5"), (0.4, "")])
def test_the_line_that_takes_most_of_the_start(tmp_path: Path, share: float, where: str) -> None:
    run = drawn_run(tmp_path / "run.watch")  # which starts in 4 s
    steps, totals = run.steps.copy(), run.totals.copy()
    steps["begin_ns"] += 4 * S
    totals["begin_ns"] += 4 * S
    samples = [(at * S // 25, 0 if at < 100 * share else 1, 0) for at in range(600)]
    lines = [SampledLine("index", "/run/data.py", 5), SampledLine("main", "/run/train.py", 9)]
    at_times = np.array(samples, run.samples.dtype)
    facts = replace_struct(run.facts, begun_unix_ns=2 * S)
    bill = bill_of(replace(run, facts=facts, steps=steps, totals=totals, lines=lines, samples=at_times))
    assert bill.losses[0].cause.startswith("start")
    assert (bill.losses[0].lost_s, bill.losses[0].where) == (5.0, where)
    assert [line.where for line in bill.lines] == ["main at train.py:9"]


def test_a_run_is_as_long_as_its_steps_where_the_clock_was_set_back(tmp_path: Path) -> None:
    run = drawn_run(tmp_path / "run.watch")  # steps of 20 s after 4 s
    assert round(bill_of(replace(run, updated_unix_ns=0)).run_s) == START_S + 20
    ns = np.arange(0, 20 * S, S // 5)
    ns[50:] -= 3600 * S  # as samples of earlier versions were
    samples = np.array([(at, 0, 0) for at in ns], run.samples.dtype)
    lines = [SampledLine("main", "/run/train.py", 9)]
    (line,) = bill_of(replace(run, updated_unix_ns=0, samples=samples, lines=lines)).lines
    assert line.share < 1


def test_a_run_that_has_just_begun_has_a_bill(tmp_path: Path) -> None:
    file = WatchFile(tmp_path / "run.watch")
    file.put_text({"created_unix_ns": S, "begun_unix_ns": 2 * S})
    file.flush()
    bill = bill_of(read_watched_run(file.path))
    assert (bill.steps, bill.losses, bill.slow) == (0, [], [])


def job(tmp_path: Path, slow_from: int | None, **facts: Any) -> list[WatchedRun]:
    """Four ranks; the others wait for rank 2 in their backward passes."""
    runs = []
    for rank in range(4):
        part = "sleep" if rank == 2 else "backward"
        more = {} if slow_from is None else {number: {part: 9.0} for number in range(slow_from, STEPS)}
        runs.append(drawn_run(tmp_path / f"rank{rank}.watch", more, seed=rank, rank=rank, **facts))
    return runs


@pytest.mark.parametrize("slow_from", [0, 600])
def test_the_rank_that_others_wait_for_is_named_with_its_steps(tmp_path: Path, slow_from: int) -> None:
    slow = slow_rank(job(tmp_path, slow_from))
    assert slow is not None
    assert (slow.rank, slow.last) == (2, STEPS - 1)
    assert slow.first == pytest.approx(slow_from, abs=3)
    assert slow.lost_ms == pytest.approx(9, abs=0.5)


def test_an_earlier_run_of_a_rank_does_not_count(tmp_path: Path) -> None:
    ranks = job(tmp_path, 0)
    earlier = replace_struct(ranks[2].facts, created_unix_ns=0, rank=1)
    slow = slow_rank([*ranks, replace(ranks[2], facts=earlier)])
    assert slow is not None
    assert slow.rank == 2


def test_of_two_ranks_the_slow_one_is_compared_with_the_other(tmp_path: Path) -> None:
    slow = slow_rank(job(tmp_path, 0)[1:3])
    assert slow is not None
    assert (slow.rank, round(slow.lost_ms)) == (2, 9)


def test_steps_in_which_the_other_rank_is_last_take_nothing_off_the_loss(tmp_path: Path) -> None:
    """One rank sleeps for 9 ms in each step, the other for 40 ms in every tenth."""
    tenth = {number: {"sleep": 9.0, "backward": 31.0} for number in range(0, STEPS, 10)}
    every = [{number: {"sleep": 9.0} for number in range(STEPS)} | tenth]
    tenth = {number: {"sleep": 40.0} for number in range(0, STEPS, 10)}
    every += [{number: {"backward": 9.0} for number in range(STEPS)} | tenth]
    runs = [drawn_run(tmp_path / f"rank{n}.watch", more, seed=n, rank=n) for n, more in enumerate(every)]
    slow = slow_rank(runs)
    assert slow is not None
    assert (slow.rank, slow.first, slow.last) == (0, 0, STEPS - 1)
    assert slow.lost_ms == pytest.approx(0.9 * 9, abs=0.3)


def test_equal_ranks_one_rank_and_ranks_on_devices_have_none(tmp_path: Path) -> None:
    assert slow_rank(job(tmp_path, None)) is None
    assert slow_rank(job(tmp_path, 0)[2:3]) is None
    assert slow_rank(job(tmp_path, 0, on_device=True)) is None
