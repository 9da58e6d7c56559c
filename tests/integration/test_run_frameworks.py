"""`stepscope run` on the example scripts: other people's training loops, unmodified."""

import pytest
from test_run import EXAMPLES, record


@pytest.mark.parametrize("accumulate", [1, 3])
def test_transformers_trainer(tmp_path, accumulate):
    pytest.importorskip("transformers")

    done, capture = record(tmp_path, str(EXAMPLES / "train_trainer.py"), "--accumulate", str(accumulate))

    assert done.returncode == 0, done.stderr
    assert "train_runtime" in done.stdout
    assert capture.manifest["outcome"] == "complete"
    (root,) = capture.roots
    assert (root["name"], root["path"]) == ("model", "")
    assert root["class"].endswith("GPT2LMHeadModel")
    assert capture.calls("transformer.h.1.mlp.c_fc") == 3 * accumulate
    assert capture.calls("lm_head") == 3 * accumulate


def test_lightning(tmp_path):
    pytest.importorskip("lightning")

    done, capture = record(tmp_path, str(EXAMPLES / "train_lightning.py"))

    assert done.returncode == 0, done.stderr
    assert capture.manifest["outcome"] == "complete"
    (root,) = capture.roots
    assert (root["name"], root["path"]) == ("AutoEncoder", "")
    assert capture.calls("encoder.0") == capture.calls("decoder.2") == 3


@pytest.mark.parametrize("critic_steps", [1, 6])
def test_a_gan_steps_when_its_generator_does(tmp_path, critic_steps):
    done, capture = record(tmp_path, str(EXAMPLES / "train_gan.py"), "--critic-steps", str(critic_steps))

    assert done.returncode == 0, done.stderr
    assert capture.manifest["step_ends_after"] == "Adam.step"
    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert [root["path"] for root in capture.roots] == ["generator", "critic"]
    assert len(capture.named("Optimizer.step#RMSprop.step")) == 3 * critic_steps
    assert len(capture.named("Optimizer.step#Adam.step")) == 3
    assert capture.calls("critic.0") == 3 * (2 * critic_steps + 1)


def test_accumulated_batches_are_one_step(tmp_path):
    _, capture = record(tmp_path, str(EXAMPLES / "train_accumulate.py"), "--accumulate", "4")

    assert capture.manifest["steps_recorded"] == [5, 6, 7]
    assert capture.calls("lstm") == capture.calls("CrossEntropyLoss") == 12


@pytest.mark.parametrize(
    ("script", "deepest"),
    [
        ("train_tiny.py", "stages.2.conv2"),
        ("train_resnet.py", "layer4.1.bn2"),
        ("train_gpt2.py", "transformer.h.3.attn.c_attn"),
    ],
)
def test_every_module_of_an_example_has_its_path(tmp_path, script, deepest):
    done, capture = record(tmp_path, str(EXAMPLES / script), "--steps", "9", "--batch", "2")

    assert done.returncode == 0, done.stderr
    assert capture.manifest["outcome"] == "complete"
    assert capture.calls(deepest) == 3
    assert capture.calls("") == 3
