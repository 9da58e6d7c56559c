"""`stepscope run` says what part of a whole run was training, evaluation, checkpointing and so on.

The parts are sleeps, which are never shorter than they should be.
"""

import os

import pytest
from test_run import TRAINING, record, write

from stepscope.base.compiled.build import LIBRARY
from stepscope.facts.load import open as open_trace
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import places_text
from stepscope.facts.summary.run_shares import run_lines

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
        ("validate", 3),
        ("save", 3),
    ]
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


WITHOUT_OPERATORS = """
import numpy, time
average = [weight.detach().numpy().copy() for weight in model.parameters()]
log = open("log.txt", "w")
def update_ema():
    for _ in range(4000):
        for mean, weight in zip(average, weights):
            mean *= 0.99
            mean += 0.01 * weight
def accuracy(guesses):
    right = 0
    for _ in range(200):
        right += sum(guess > 3 for guess in guesses)
    return right / 200
def write_log(step, value):
    for _ in range(4000):
        log.write(f"{step} {value}\\n")
        log.flush()
for step in range(12):
    train(1)
    weights = [weight.detach().numpy() for weight in model.parameters()]
    update_ema()
    write_log(step, accuracy(range(1000)))
    time.sleep(0.02)
"""


def sampled(facts):
    return [place for place in facts.places if place.samples]


def test_python_between_operators_has_its_functions_and_lines(tmp_path, library):
    """An average of weights in NumPy, a metric, a log, and a pause of the loop itself."""
    if library != LIBRARY:
        pytest.skip("the project was installed without its library")
    script = TRAINING + WITHOUT_OPERATORS
    write(tmp_path, script)
    record(tmp_path, "train.py")
    facts = summarize(open_trace(tmp_path / "train.stepscope"))
    lines = script.splitlines()
    found = {(place.function, lines[place.line - 1].strip()) for place in sampled(facts)}
    assert ("<module>", "time.sleep(0.02)") in found
    in_functions = {function: line for function, line in found if function != "<module>"}
    assert in_functions["update_ema"].startswith(("for", "mean"))
    assert in_functions["write_log"].startswith(("for", "log."))
    assert any(function.startswith("accuracy") for function in in_functions)
    (other,) = (stage for stage in facts.stages if stage.stage == "other")
    assert 0.8 * other.cpu_ms < sum(place.ms for place in sampled(facts)) < 1.01 * other.cpu_ms


def test_without_the_compiled_library_the_report_says_what_is_missing(tmp_path):
    write(tmp_path, TRAINING + WITHOUT_OPERATORS)
    record(tmp_path, "train.py", env={**os.environ, "STEPSCOPE_COMPILED": "off"})
    facts = summarize(open_trace(tmp_path / "train.stepscope"))
    assert not sampled(facts)
    assert facts.not_sampled == "the compiled library is switched off by STEPSCOPE_COMPILED"
    assert f"other has no functions and lines: {facts.not_sampled}" in places_text(facts).plain


def test_evaluation_in_recorded_steps_is_a_stage_with_its_function(tmp_path):
    script = TRAINING + IN_EVERY_STEP
    write(tmp_path, script)
    record(tmp_path, "train.py")
    facts = summarize(open_trace(tmp_path / "train.stepscope"))
    line = script[: script.index("    with torch.no_grad():\n        model(")].count("\n") + 1
    assert "evaluation" in {stage.stage for stage in facts.stages}
    marked = [place for place in facts.places if place.calls]
    found = {(place.stage, place.function): place.line for place in marked}
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
