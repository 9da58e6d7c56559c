"""`stepscope report` on real traces, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope

EXAMPLES = Path(__file__).parents[2] / "examples"


def report(*arguments: str | Path) -> str:
    result = CliRunner().invoke(stepscope, ["report", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def resnet(traces: Path) -> Path:
    return traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"


def test_the_text_says_what_the_step_waits_for(resnet: Path, traces: Path) -> None:
    assert "The step waits for data" in report(resnet)
    assert "waits for data" not in report(resnet.with_name("num_workers_4.json.gz"))


def test_json_gives_the_same_facts(resnet: Path) -> None:
    facts = json.loads(report(resnet, "--json"))
    text = report(resnet)
    assert facts["verdict"]["sentence"].split(":")[0] in text
    assert f"{facts['steps']['mean_ms']:.1f} ms" in text
    for stage in facts["stages"]:
        assert stage["stage"].replace("_", " ") in text


def test_one_step_is_told_as_it_was(resnet: Path) -> None:
    facts = json.loads(report(resnet, "--json", "--step", "5"))
    assert facts["steps"]["numbers"] == [5]
    assert facts["steps"]["mean_ms"] == pytest.approx(187.95, rel=0.01)  # with its device work


def test_a_model_tree_names_the_modules_of_a_trace_without_any(resnet: Path) -> None:
    """Kineto's ResNet-50: the stages of the network cost what they do in forward and backward."""
    facts = json.loads(report(resnet, "--json", "--model", EXAMPLES / "resnet50.model.json"))
    (root,) = facts["modules"]
    stages = {one["stage"]: one["device_ms"] for one in facts["stages"]}
    assert facts["modules_evidence"] == "matched"
    assert root["forward_device_ms"] == pytest.approx(stages["forward"], rel=0.03)
    assert root["backward_device_ms"] == pytest.approx(stages["backward"], rel=0.03)
    layers = [one for one in root["children"] if one["name"].startswith("layer")]
    assert [one["name"] for one in layers] == ["layer1", "layer2", "layer3", "layer4"]
    blocks = [sum(child["count"] for child in layer["children"]) for layer in layers]
    assert blocks == [3, 4, 6, 3]
    assert sum(one["forward_device_ms"] for one in layers) > 0.9 * root["forward_device_ms"]


def test_ranks_stand_side_by_side(traces: Path) -> None:
    text = report(traces / "dlrm_8rank_v100")
    assert "Ranks, ms per step" in text
    facts = json.loads(report(traces / "dlrm_8rank_v100", "--json"))
    assert [one["rank"] for one in facts["ranks"]] == list(range(8))


def test_a_picture_can_be_saved(resnet: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.svg"
    assert report(resnet, "--svg", out) == ""
    assert out.read_text("utf-8").startswith("<svg")


def test_what_is_not_there_is_one_line_and_exit_code_2(resnet: Path) -> None:
    missing = (["no_such_file.json"], "no such file or folder")
    for arguments, message in (missing, ([str(resnet), "--step", "99"], "has no step 99")):
        result = CliRunner().invoke(stepscope, ["report", *arguments])
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert message in result.stderr
