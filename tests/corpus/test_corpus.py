"""The rules find what was planted, name cause and place, and raise no alarm on clean steps."""

from __future__ import annotations

from collections import Counter

import pytest
from cases import CLEAN_CASES, DEFECTS, Case
from evaluate import Outcome, evaluated, outcome

from stepscope.analyze import RULES

RECALL, PLACES = 0.90, 0.85


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return evaluated()


def test_the_corpus_is_large_enough_and_its_names_are_unique() -> None:
    names = Counter(case.name for case in (*DEFECTS, *CLEAN_CASES))
    assert max(names.values()) == 1
    assert (len(DEFECTS) >= 60, len(CLEAN_CASES) >= 40) == (True, True)
    assert {flavor for case in DEFECTS for flavor in [case.flavor]} == {"cuda", "rocm", "cpu", "jax"}
    assert {rule for case in DEFECTS for rule in case.rules} <= {rule.name for rule in RULES}


def test_planted_defects_are_found_with_their_cause_and_place(outcomes: list[Outcome]) -> None:
    planted = [one for one in outcomes if one.case.rules]
    missed = [one.case.name for one in planted if not one.meant]
    vague = [one.case.name for one in planted if one.meant and not one.shown]
    assert len(missed) <= (1 - RECALL) * len(planted), missed
    assert len(missed) + len(vague) <= (1 - PLACES) * len(planted), vague


def test_clean_steps_raise_no_alarm(outcomes: list[Outcome]) -> None:
    alarms = {one.case.name: one.alarms for one in outcomes if not one.case.rules and one.alarms}
    assert not alarms


def test_no_internal_name_and_no_gain_beyond_the_step(outcomes: list[Outcome]) -> None:
    for one in outcomes:
        for finding in one.findings:
            assert "ProfilerStep" not in f"{finding.what} {finding.advice}", one.case.name
            assert 0 <= finding.gain.ms <= finding.step_ms * 1.001, (one.case.name, finding)


@pytest.mark.parametrize("case", CLEAN_CASES[::7], ids=lambda case: case.name)
def test_clean_steps_stay_clean_with_other_jitter(case: Case) -> None:
    assert not outcome(case, seed=7).alarms
