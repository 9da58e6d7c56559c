"""What limits a step."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from stepscope.facts.summary import facts
from stepscope.facts.summary import verdict as verdict_module
from stepscope.facts.summary.verdict import NO_NAMES, under_load, verdict, without_all_work


def stage_of(name: str, share: float) -> facts.Stage:
    return facts.Stage(name, 0.0, 0.0, share, "cpu")


def device_of(
    computing_ms: float, idle_ms: dict[str, float] | None = None, window_ms: float = 100.0
) -> facts.Device:
    return facts.Device(0, "", window_ms, computing_ms, 0.0, idle_ms or {}, 0.0, 0.0)


@pytest.mark.parametrize(
    ("idle", "bound_by"),
    [
        ({"data": 33.0, "host": 14.0}, "data"),
        ({"data": 5.0, "host": 40.0}, "host"),
        ({"communication": 64.0, "host": 1.0}, "communication"),
        ({"synchronization": 12.0, "launch": 3.0}, "synchronization"),
        ({"data": 4.0, "host": 5.0}, "device"),
        ({"data": 4.0, "host": 9.0}, "host"),
        (
            {"data": 8.0, "synchronization": 7.0, "communication": 9.0, "host": 8.0, "launch": 8.0},
            "communication",
        ),
    ],
)
def test_the_longest_notable_idle_cause_else_the_device(idle: dict[str, float], bound_by: str) -> None:
    device = device_of(100.0 - sum(idle.values()), idle)
    assert verdict(100.0, [], [device]).bound_by == bound_by


def test_the_sentence_tells_the_share() -> None:
    found = verdict(100.0, [], [device_of(67.0, {"data": 33.0, "host": 0.0})])
    assert found.sentence.startswith("The step waits for data: the device idles 33% of it")


@pytest.mark.parametrize(
    ("computing", "host", "sentence"),
    [
        (20.0, 70.0, "The step is host-bound: the device awaits launches for 70% of it"),
        (72.0, 18.0, "The device computes or copies 72% of the step, awaits launches 18%."),
    ],
)
def test_a_step_is_host_bound_if_the_device_waits_for_longer_than_it_computes(
    computing: float, host: float, sentence: str
) -> None:
    found = verdict(100.0, [], [device_of(computing, {"host": host})])
    assert found.sentence.startswith(sentence)
    assert found.bound_by == "host"


def test_idle_time_of_several_short_causes_is_told_with_the_longest() -> None:
    idle = dict.fromkeys(("data", "synchronization", "host", "launch"), 9.0) | {"one_off": 0.0}
    assert verdict(100.0, [], [device_of(60.0, idle | {"data": 9.4})]).sentence == (
        "The device computes or copies 60% of the step. "
        "The rest has several causes, the longest 9% (idle, waiting for data)."
    )


def test_the_device_that_computes_most_decides() -> None:
    lazy, busy = device_of(1.0, {"host": 99.0}), device_of(95.0, {"host": 5.0})
    assert verdict(100.0, [], [lazy, busy]).bound_by == "device"


@pytest.mark.parametrize("turns", [0.0, 20.0, 48.0])
def test_devices_that_work_one_after_the_other_take_turns(turns: float) -> None:
    """A model in two parts: neither waits for the CPU, each for the other."""
    devices = [device_of(50.0, {"synchronization": 48.0, "launch": 2.0}), device_of(49.0, {"launch": 51.0})]
    found = verdict(100.0, [], devices, turns=turns)
    whole = "Devices wait for each other. The busiest computes or copies 50% of the step."
    assert (found.sentence == whole) == (turns > 25)


def test_without_a_device_loading_data_or_the_longest_stage_decides() -> None:
    computing = [stage_of("data_loading", 0.05), stage_of("forward", 0.3), stage_of("backward", 0.6)]
    waiting = [stage_of("data_loading", 0.4), stage_of("forward", 0.3), stage_of("backward", 0.3)]
    assert "backward (60%)" in verdict(100.0, computing, []).sentence
    assert verdict(100.0, waiting, []).bound_by == "data"
    assert verdict(100.0, [], []).bound_by == "cpu"


def test_the_verdict_names_what_costs_most_before_what_loads() -> None:
    found = verdict(100.0, [stage_of("data_loading", 0.17), stage_of("backward", 0.51)], [])
    assert found.bound_by == "cpu"
    assert found.sentence == (
        "The step is CPU-bound; the longest stage is backward (51%). Loading batches takes 17%."
    )


def test_without_a_device_python_that_takes_half_of_the_step_holds_it_up() -> None:
    stages = [
        stage_of("data_loading", 0.2),
        stage_of("backward", 0.4),
        stage_of("optimizer", 0.1),
        stage_of("other", 0.3),
    ]
    found = verdict(100.0, stages, [], {"backward": 0.4, "other": 0.3})
    assert (found.bound_by, found.share) == ("host", pytest.approx(0.7))
    assert (
        found.sentence
        == "Python limits the step: for 70% of it no operator runs. That is mostly in backward."
    )
    found = verdict(100.0, stages, [], {"other": 0.5})
    assert found.sentence.endswith("mostly outside forward, backward and optimizer.")
    assert verdict(100.0, stages, [], {"other": 0.3}).bound_by == "cpu"


def test_a_step_that_mostly_does_something_else_says_so() -> None:
    stages = [stage_of("backward", 0.1), stage_of("optimizer", 0.1), stage_of("other", 0.6)]
    found = verdict(100.0, stages, [])
    assert found.sentence.startswith("Work outside training takes 60% of the step.")


def test_a_step_that_mostly_compiles_says_so() -> None:
    stages = [stage_of("forward", 0.2), stage_of("other", 0.8)]
    found = verdict(100.0, stages, [], {"other": 0.7}, compiling=0.7)
    assert found.sentence.startswith("Compilation takes 70% of the step")
    assert verdict(100.0, stages, [], compiling=0.4).sentence.startswith("Work outside the model takes 80%")


def test_where_no_update_was_recognized_the_rest_may_train() -> None:
    stages = [stage_of("backward", 0.2), stage_of("other", 0.6)]
    assert verdict(100.0, stages, []).sentence == (
        "Work outside the forward and backward pass takes 60% of the step. "
        "It is neither data loading, forward nor backward."
    )
    found = verdict(100.0, stages, [], {"other": 0.6})
    assert found.sentence.endswith("mostly outside forward and backward.")


@pytest.mark.parametrize(
    ("stage", "parts", "outside"),
    [
        ("decode", "prefill nor decode", "prefill and decode"),
        ("prefill_decode", "prefill nor decode", "prefill and decode"),
        ("forward", "data loading nor forward", "forward"),
    ],
)
def test_nothing_is_said_of_training_without_evidence(stage: str, parts: str, outside: str) -> None:
    stages = [stage_of(stage, 0.2), stage_of("other", 0.6)]
    assert verdict(100.0, stages, []).sentence == (
        f"Work outside the model takes 60% of the step. It is neither {parts}."
    )
    assert verdict(100.0, stages, [], {"other": 0.6}).sentence.endswith(f"mostly outside {outside}.")


def test_a_trace_without_any_known_stage_does_not_show_what_limits_it() -> None:
    for stages in ([], [stage_of("other", 1.0)]):
        found = verdict(100.0, stages, [])
        assert found.sentence.startswith("The trace does not show what the step does")


def test_without_a_device_waiting_for_others_decides_where_it_is_longer_than_loading() -> None:
    stages = [stage_of("data_loading", 0.15), stage_of("backward", 0.8)]
    found = verdict(100.0, stages, [], {}, 0.3)
    assert (found.bound_by, found.share) == ("communication", 0.3)
    assert found.sentence.startswith("The step waits for communication: ranks exchange data for 30% of it.")
    assert verdict(100.0, stages, [], {}, 0.12).bound_by == "cpu"
    assert verdict(100.0, stages[1:], [], {}, 0.05).bound_by == "cpu"


@pytest.mark.parametrize(
    ("copying_ms", "sentence"),
    [
        (
            95.0,
            "The step is bound by copies, 96% of the device's work. The device is busy for 99% of the step.",
        ),
        (40.0, "The step is device-bound: the device computes or copies 99% of it."),
    ],
)
def test_a_device_that_mostly_copies_does_not_compute(copying_ms: float, sentence: str) -> None:
    found = verdict(100.0, [], [replace(device_of(99.0, {"host": 1.0}), copying_ms=copying_ms)])
    assert (found.bound_by, found.sentence) == ("device", sentence)


def test_what_waits_for_other_ranks_is_no_block_of_the_loop() -> None:
    stages = [stage_of("loss", 0.7), stage_of("backward", 0.3)]
    found = verdict(100.0, stages, [], {"loss": 0.5}, communication=0.4, active=0.6)
    assert found.sentence.startswith("Python limits the step: for 50% of it no operator runs")


@pytest.mark.parametrize(
    ("active", "sentence"),
    [
        (0.1, "The step waits: its loop is blocked for about 70% of it"),
        # 30 % are operators, which use a core.
        (0.4, "The step waits: its loop is blocked for about 60% of it"),
        (0.7, "Python limits the step: for 70% of it no operator runs"),
        (1.0, "Python limits the step: for 70% of it no operator runs"),
    ],
)
def test_a_loop_that_uses_no_core_waits_and_runs_no_python(active: float, sentence: str) -> None:
    stages = [stage_of("loss", 0.7), stage_of("backward", 0.3)]
    found = verdict(100.0, stages, [], {"loss": 0.7}, active=active)
    assert found.sentence == f"{sentence}. That is mostly in loss."


@pytest.mark.parametrize(
    ("python", "held_up", "sentence"),
    [
        (0.3, 0.6, "The step waits: its loop is blocked for about 60% of it. That is mostly in loss."),
        (0.3, 0.4, "The step is CPU-bound; the longest stage is loss (50%)."),
        (0.6, 0.55, "The step waits: its loop is blocked for about 60% of it. That is mostly in loss."),
        (0.0, 0.6, "The step is CPU-bound; the longest stage is loss (50%)."),  # no operator is recorded
    ],
)
def test_a_loop_that_other_threads_hold_up_waits(python: float, held_up: float, sentence: str) -> None:
    """Also in calls, which begin or end once the thread runs Python again."""
    stages = [stage_of("loss", 0.5), stage_of("backward", 0.5)]
    assert verdict(100.0, stages, [], {"loss": python}, active=0.4, held_up=held_up).sentence == sentence


@pytest.mark.parametrize(
    ("loads", "python", "later", "bound_by"),
    [
        (0.02, 0.1, 0.6, "data"),  # the recorded steps found batches that were ready
        (0.02, 0.1, 0.09, "cpu"),  # too little
        (0.02, 0.7, 0.4, "host"),  # less than Python takes
        (0.00, 0.1, 0.0, "cpu"),  # unknown, or none
    ],
)
def test_steps_after_the_recording_may_wait_for_data_that_the_recorded_ones_had(
    loads: float, python: float, later: float, bound_by: str
) -> None:
    stages = [stage_of("data_loading", loads), stage_of("forward", 1 - loads)]
    found = verdict(100.0, stages, [], {"forward": python}, later_data=later)
    assert found.bound_by == bound_by
    assert ("after recording" in found.sentence) == (bound_by == "data")


def test_data_that_the_recorded_steps_wait_for_as_well_is_said_of_them() -> None:
    stages = [stage_of("data_loading", 0.4), stage_of("forward", 0.3), stage_of("backward", 0.3)]
    found = verdict(100.0, stages, [], later_data=0.6)
    assert found.sentence == "The step waits for data: loading batches takes 40% of it."


@pytest.mark.parametrize(
    ("loads", "python", "blocked", "bound_by"),
    [
        (0.0, 0.1, 0.3, "host"),  # a thread of the script had filled its queue
        (0.0, 0.1, 0.15, "cpu"),  # as much as the share of CPU time varies
        (0.5, 0.1, 0.3, "data"),  # the recorded steps wait for more
    ],
)
def test_a_loop_that_is_blocked_only_after_the_recording_waits(
    loads: float, python: float, blocked: float, bound_by: str
) -> None:
    stages = [stage_of("data_loading", loads), stage_of("forward", 1 - loads)]
    found = verdict(100.0, stages, [], {"forward": python}, later_blocked=blocked)
    assert found.bound_by == bound_by
    assert ("after recording" in found.sentence) == (bound_by == "host")


def test_a_device_that_is_busy_with_the_work_of_two_ranks_says_nothing_of_either() -> None:
    busy = verdict(100.0, [], [device_of(99.0, {"data": 1.0})])
    assert without_all_work(busy, "work is missing").bound_by == "device"
    assert without_all_work(busy, "several ranks", elsewhere=True).bound_by == "unknown"


@pytest.mark.parametrize("sentence", verdict_module._SENTENCES.values())
def test_the_title_has_at_most_twelve_words(sentence: str) -> None:
    """The first sentence, however certain it is; the others may say more: the page has room for one."""
    words = {"what": "the forward and backward pass", "stage": "prefill + decode", "parts": "a nor b"}
    words["words"] = "idle"
    shares = dict.fromkeys(("share", "computing", "copies"), 0.5)
    found = facts.Verdict("host", 0.5, sentence.format(where="", loads="", why=NO_NAMES, **words, **shares))
    doubtful = [under_load(found, share) for share in (None, 0.9, 0.5)]
    withheld = [
        without_all_work(found, why) for why in ("30 of 30 launches lack work", "the file has ranges")
    ]
    for one in (*doubtful, *withheld):
        title = re.split(r"(?<=[.]) (?=[A-Z`])", one.sentence)[0]
        assert len(title.split()) <= 12, title
