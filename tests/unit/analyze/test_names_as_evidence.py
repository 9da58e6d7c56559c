"""Names are evidence only where the data agrees: of paths, evaluations and checkpoints."""

from __future__ import annotations

import pytest
from drawn_findings import found

from stepscope.analyze.rules.slow_function import DRAWS

FUNCTION = """
    main | 0 1000 | ProfilerStep#0
    main | 10 500 | {frame} | cat=python
    main | 20 490 | {operator} | seq=1
"""
BACKWARD = "    main | 500 900 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1"


@pytest.mark.parametrize(
    ("frame", "operator", "backward", "is_evaluation"),
    [
        ("train.py(9): evaluate", "aten::mm", "", True),
        ("train.py(9): run_eval_loop", "aten::mm", "", True),
        ("ppo.py(9): evaluate_actions", "aten::mm", BACKWARD, False),  # the training's own forward
        ("torch/distributions/distribution.py(9): _validate_sample", "aten::eq", "", False),  # no model
        ("/home/me/evaluate/train.py(9): step", "aten::mm", "", False),
        ("train_and_evaluate.py(9): <module>", "aten::mm", "", False),
    ],
)
def test_an_evaluation_runs_a_model_and_trains_none(
    frame: str, operator: str, backward: str, is_evaluation: bool
) -> None:
    text = FUNCTION.format(frame=frame, operator=operator) + backward
    assert (found("frequent_evaluation", text) is not None) is is_evaluation


@pytest.mark.parametrize(
    ("frame", "saves"),
    [
        ("train.py(9): save_checkpoint", True),
        ("torch/serialization.py(9): save", True),
        ("safetensors/torch.py(9): save_file", True),
        ("/home/me/save_checkpoint/train.py(9): step", False),
        ("save_model.py(9): <module>", False),
    ],
)
def test_the_path_of_a_file_saves_no_checkpoint(frame: str, saves: bool) -> None:
    text = FUNCTION.format(frame=frame, operator="aten::copy_")
    assert (found("checkpoint_in_loop", text) is not None) is saves


@pytest.mark.parametrize(
    ("function", "draws"),
    [
        ("Buffer.sample", True),
        ("get_batch", True),
        (" See train.py:3 in next_batch.", True),
        ("Ema.on_batch_end", False),
        ("Loop.train_batch", False),
    ],
)
def test_only_what_makes_a_batch_draws_from_something(function: str, draws: bool) -> None:
    assert bool(DRAWS.search(function)) == draws
