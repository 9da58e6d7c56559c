"""The shares of a run in words."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.facts.summary.run_shares import run_lines, run_shares


def manifest(seconds: float = 100, *, ended: bool = True, **stages: float) -> dict[str, Any]:
    """Of a run whose stages take these shares; the rest is training."""
    stages["training_steps"] = 1 - sum(stages.values())
    places = [
        {
            "stage": name,
            "function": "validate",
            "file": "/home/me/train.py",
            "line": 31,
            "count": 1200,
            "ns": share * seconds * 1e9,
        }
        for name, share in stages.items()
        if name == "evaluation"
    ]
    shares = {name: share * seconds * 1e9 for name, share in stages.items()}
    return {
        "run_shares": {
            "ended": ended,
            "elapsed_ns": seconds * 1e9,
            "steps": 1000,
            "data_loading_ns": 0,
            "first_step_ns": None,
            "torch_imported_ns": None,
            "stages_ns": shares,
            "places": places,
        }
    }


def lines(**facts: Any) -> list[str]:
    found = run_shares(manifest(**facts))
    assert found is not None
    return list(run_lines(found))


def test_what_is_outside_of_steps_is_said_with_and_without_start_up() -> None:
    assert lines(start_up=0.5, evaluation=0.2, rollout=0.003) == [
        "Of the run (1.67 min): start-up 50%, training steps 30%, evaluation 20%",
        "  70% of the run lies outside of training steps (41% without start-up)",
        "  20% evaluation: validate, train.py:31, 1,200 times",
    ]


def test_a_run_that_only_trains_needs_one_line() -> None:
    assert lines(start_up=0.01) == ["Of the run (1.67 min): training steps 99%, start-up 1.0%"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(1.234, "1.23 s"), (119, "1.98 min"), (600, "10 min"), (9000, "2.5 h")]
)
def test_length_of_a_run(seconds: float, words: str) -> None:
    assert lines(seconds=seconds)[0].startswith(f"Of the run ({words})")
    assert lines(seconds=seconds, ended=False)[0].startswith(f"Of the run so far ({words})")


@pytest.mark.parametrize("capture", [{}, {"run_shares": None}])
def test_nothing_is_said_of_what_was_not_measured(capture: dict[str, Any]) -> None:
    assert run_shares(capture) is None


def training(number: int, step_ms: float, *, recorded: bool = False) -> dict[str, Any]:
    """Of 50 steps."""
    return {
        "first_optimizer": number,
        "optimizers": 1,
        "class": "Adam",
        "function": "train",
        "file": "/home/me/sweep.py",
        "line": 8,
        "steps": 50,
        "step_ns": step_ms * 1e6,
        "elapsed_ns": 50 * step_ms * 1e6,
        "recorded": recorded,
    }


def test_trainings_that_follow_each_other_are_listed_those_alike_in_one_line() -> None:
    capture = manifest()
    capture["run_shares"]["trainings"] = [
        training(1, 20, recorded=True),
        training(2, 22),
        training(3, 200),
        training(4, 1500),
    ]
    found = run_shares(capture)
    assert found is not None
    assert list(run_lines(found))[1:] == [
        "  4 trainings, one after the other:",
        "  2.1% training 1 to 2: Adam.step in train, sweep.py:8, 100 steps of 21 ms, recorded",
        "  10% training 3: Adam.step in train, sweep.py:8, 50 steps of 200 ms",
        "  75% training 4: Adam.step in train, sweep.py:8, 50 steps of 1,500 ms",
    ]


def test_many_trainings_at_one_line_are_one_however_long_their_steps() -> None:
    """Federated learning: hundreds of trainings with a few steps each, which vary."""
    capture = manifest()
    lengths = [2.0, 5.0] * 50
    capture["run_shares"]["trainings"] = [training(i + 1, ms) for i, ms in enumerate(lengths)]
    found = run_shares(capture)
    assert found is not None
    assert list(run_lines(found))[1:] == [
        "  100 trainings, one after the other:",
        "  18% training 1 to 100: Adam.step in train, sweep.py:8, 5,000 steps of 3.5 ms",
    ]


def test_a_run_with_one_training_lists_none() -> None:
    capture = manifest()
    capture["run_shares"]["trainings"] = [training(1, 20, recorded=True)]
    found = run_shares(capture)
    assert found is not None
    assert len(list(run_lines(found))) == 1
