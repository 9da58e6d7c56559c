"""What the whole run knows reaches the advice: rollouts, evaluation, checkpoints, and sampled functions."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import found

STEP = """
    main | 0 1000 | ProfilerStep#0
    main | 10 300 | aten::mm | seq=1
    main | 300 800 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 810 900 | Optimizer.step#SGD.step
"""
EVALUATION = "    main | 905 999 | train.py(9): evaluate | cat=python\n    main | 906 998 | aten::mm"


def run(**seconds: float) -> dict[str, Any]:
    """100 steps, and how long each stage of the run took."""
    stages = {name: round(value * 1e9) for name, value in seconds.items()}
    place = {"function": "collect", "file": "/me/train.py", "line": 7, "count": 50}
    places = [place | {"stage": name, "ns": ns} for name, ns in stages.items()]
    facts = {"ended": True, "elapsed_ns": sum(stages.values()), "steps": 100, "data_loading_ns": 0}
    return {"run_shares": facts | {"stages_ns": stages, "places": places}}


@pytest.mark.parametrize(
    ("rule", "stage", "least"),
    [
        ("rollouts", "rollout", 0.2),
        ("frequent_evaluation", "evaluation", 0.2),
        ("checkpoint_in_loop", "checkpointing", 0.05),
    ],
)
def test_a_part_of_the_run_is_advised_on_though_no_recorded_step_has_it(
    rule: str, stage: str, least: float
) -> None:
    share = least + 0.02
    finding = found(rule, STEP, capture=run(start_up=5.0, training_steps=1 - share, **{stage: share}))
    assert finding is not None
    assert f"{share:.0%} of the run after start-up. Most is in me/train.py:7 in collect." in finding.what
    assert (finding.of, finding.share) == ("run", pytest.approx(share))
    assert finding.gain.ms == pytest.approx(10 * share)  # per training step
    few = run(start_up=5.0, training_steps=1.02 - least, **{stage: least - 0.02})
    assert found(rule, STEP, capture=few) is None


def test_a_rare_evaluation_in_the_recorded_steps_is_as_rare_as_in_the_run() -> None:
    text = (STEP + EVALUATION).replace("905 999", "905 5000").replace("906 998", "906 4990")
    text = text.replace("0 1000", "0 5100")
    assert found("frequent_evaluation", text) is not None
    assert found("frequent_evaluation", text, capture=run(training_steps=0.98, evaluation=0.02)) is None
