"""`stepscope run` says what part of a whole run was training, evaluation, checkpointing and so on.

The parts are sleeps, which are never shorter than they should be.
"""

from test_run import TRAINING, record, write

from stepscope.load import open as open_trace
from stepscope.summary.report_facts import summarize
from stepscope.summary.run_shares import run_lines

PARTS = """
import io, time
@torch.no_grad()
def validate():
    model.eval()
    model(torch.randn(2, 4))
    time.sleep(0.1)
    model.train()
def save():
    class Slow:
        def __reduce__(self):
            time.sleep(0.05)
            return int, ()
    torch.save({"model": model.state_dict(), "slow": Slow()}, io.BytesIO())
for epoch in range(3):
    for _ in range(8):
        time.sleep(0.01)
        train(1)
    validate()
    save()
raise ValueError
"""


def test_a_run_that_fails_still_knows_its_shares(tmp_path):
    write(tmp_path, TRAINING + PARTS)
    _, capture = record(tmp_path, "train.py")
    found = capture.manifest["run_shares"]
    stages = found["stages_ns"]
    assert found["ended"]
    assert found["steps"] == 24
    assert sum(stages.values()) == found["elapsed_ns"]
    assert stages["evaluation"] >= 0.3e9
    assert stages["training_steps"] >= 0.23e9
    assert stages["checkpointing"] >= 0.15e9
    assert stages["start_up"] >= found["torch_imported_ns"] > 0
    assert stages["rollout"] == stages["data_preparation"] == 0
    assert [(place["function"], place["count"]) for place in found["places"]] == [
        ("validate", 3), ("save", 3),
    ]  # fmt: skip
    run = summarize(open_trace(tmp_path / "train.stepscope")).run
    text = "\n".join(run_lines(run))
    assert text.startswith("Of the run (")
    assert "of the run lies outside of training steps" in text


IN_EVERY_STEP = """
import copy
average = copy.deepcopy(model).requires_grad_(False)
@torch.no_grad()
def update_average():
    for mean, weight in zip(average.parameters(), model.parameters()):
        mean.lerp_(weight, 0.1)
def evaluate():
    model.eval()
    with torch.no_grad():
        model(torch.randn(64, 4)).sum().item()
    model.train()
for _ in range(12):
    train(1)
    update_average()
    evaluate()
"""


def test_evaluation_in_recorded_steps_is_a_stage_with_its_function(tmp_path):
    script = TRAINING + IN_EVERY_STEP
    write(tmp_path, script)
    record(tmp_path, "train.py")
    facts = summarize(open_trace(tmp_path / "train.stepscope"))
    line = script[: script.index("    with torch.no_grad():\n        model(")].count("\n") + 1
    assert "evaluation" in {stage.stage for stage in facts.stages}
    found = {(place.stage, place.function): place.line for place in facts.places}
    assert found.keys() == {("evaluation", "evaluate"), ("other", "update_average")}
    assert found["evaluation", "evaluate"] == line


def test_a_program_that_does_not_train_evaluates_nothing(tmp_path):
    """A server of requests: its blocks without gradients are what it does."""
    script = """
import torch
from torch import nn
model = nn.Linear(4, 4).eval()
def serve():
    for _ in range(12):
        with torch.inference_mode():
            model(torch.randn(2, 4))
serve()
"""
    write(tmp_path, script)
    record(tmp_path, "train.py")
    facts = summarize(open_trace(tmp_path / "train.stepscope"))
    assert "evaluation" not in {stage.stage for stage in facts.stages}
