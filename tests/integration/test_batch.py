"""Entry files run at several batch sizes: memory to the byte, breakdowns that add up, failures at
their line. Nothing here looks at how long anything took."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.faces.terminal.commands import stepscope
from stepscope.models.batch_size import Cancelled, Plan, Result, Session
from stepscope.models.batch_size.breakdown import CostNode
from stepscope.models.batch_size.entry_profile import Profile
from stepscope.models.batch_size.site import edit_site
from stepscope.models.devices import Wanted, parse_targets, project, read_prices
from stepscope.record.batch_size.request import Effort

pytest.importorskip("torch")

PROVIDERS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 128)
        self.b = nn.Linear(128, 10)

    def forward(self, x):
        x = self.a(x)
        x = torch.relu(x)
        return self.b(x)


def stepscope_model_provider():
    return Net()


def stepscope_input_provider(batch_size=16):
    return torch.randn(batch_size, 64), torch.randint(10, (batch_size,))


def stepscope_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def iteration(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return iteration
"""

SCRIPT = """
import torch

batch_size = 12  # the only one


model = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(batch_size, 32)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""

WEIGHTS = 4 * (64 * 128 + 128 + 128 * 10 + 10)
LINEAR_A = 4 * (64 * 128 + 128)
PLAN = Plan(extra=0, rounds=1, effort=Effort(warmup=1, memory=1, least=1, most=2, seconds=0), timeout_s=300)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One measuring process for all tests; a single thread, since cores may be few."""
    patch = pytest.MonkeyPatch()
    patch.setenv("OMP_NUM_THREADS", "1")
    with Session() as one:
        one.warm_up()
        yield one
    patch.undo()


@pytest.fixture(scope="module")
def result(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The profile of the providers."""
    entry = written(tmp_path_factory.mktemp("providers"), PROVIDERS)
    return session.profile(entry, plan=replace(PLAN, points=6))


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def walk(node: CostNode) -> Iterator[CostNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def find(node: CostNode, name: str) -> CostNode:
    """The first node of a name, depth first."""
    return next(one for one in walk(node) if one.name == name)


# -- providers


def test_points_are_the_users_own_and_larger_ones(result: Result) -> None:
    assert [point.batch for point in result.profile.points] == [4, 8, 16, 24, 32, 40]
    assert [point.batch for point in result.profile.points if point.held_back] == [40]
    assert result.entry.site.sentence.startswith("the default of the input provider, batch_size, 16")


def test_memory_at_the_peak_is_told_to_the_byte(result: Result) -> None:
    breakdown = result.breakdown
    assert breakdown is not None
    own = next(point for point in result.profile.points if point.batch == 16)
    assert breakdown.peak_bytes == own.bytes
    assert sum(breakdown.memory.values()) == breakdown.peak_bytes
    assert breakdown.memory["weights"] == WEIGHTS
    assert breakdown.memory["gradients"] == WEIGHTS
    assert breakdown.memory["optimizer_state"] == WEIGHTS
    assert breakdown.memory["inputs"] == 16 * 64 * 4 + 16 * 8
    assert breakdown.memory["untracked"] == 0


def test_the_tree_holds_every_byte_and_the_whole_step(result: Result) -> None:
    assert result.breakdown is not None
    tree = result.breakdown.tree
    assert tree.bytes == result.breakdown.peak_bytes
    assert tree.ms == pytest.approx(result.breakdown.step_ms)
    assert tree.weights_bytes == WEIGHTS
    model = find(tree, "model")
    assert model.class_ == "Net"
    assert find(model, "a").weights_bytes == LINEAR_A
    assert find(model, "a").calls == 1
    relu = find(model, "aten::relu")
    assert relu.activations_bytes == 16 * 128 * 4
    assert (Path(relu.file).name, relu.line) == ("train.py", 14)
    assert relu.forward_ms > 0
    assert relu.backward_ms > 0


def test_lines_have_what_their_calls_keep_and_make(result: Result) -> None:
    assert result.breakdown is not None
    lines = {line.line: line for line in result.breakdown.lines}
    assert lines[14].self_activations_bytes == 16 * 128 * 4
    assert lines[9].weights_bytes == LINEAR_A
    assert lines[31].forward_ms > 0  # the call of the model, with all that it leads to
    assert lines[31].ms >= lines[14].ms
    assert [one.path for one in lines[13].modules] == ["a"]
    assert lines[14].calls == 1


def test_memory_is_a_line_until_the_peak_moves_from_the_optimizer_to_the_loss(result: Result) -> None:
    memory = result.profile.memory
    _, eight, *sizes = [point.bytes for point in result.profile.points]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == 8 * 4 * (64 + 128 + 2)
    assert sizes[0] - eight == 8 * 4 * (64 + 128 + 2)
    assert sizes[3] - sizes[2] > sizes[1] - sizes[0]
    assert memory is not None
    assert memory.residual() == pytest.approx(0, abs=1e-9)
    assert any("the memory peak moves" in words for words in result.profile.warnings)


def test_fake_tensors_estimate_what_was_measured(result: Result) -> None:
    estimate = result.estimate
    assert estimate is not None
    assert estimate.error == pytest.approx(0, abs=0.02)
    assert estimate.memory["weights"] == WEIGHTS
    by_path = {row["path"]: row for row in estimate.modules}
    assert by_path["a"]["weights"] == LINEAR_A


def test_the_split_at_another_batch_size_adds_up(result: Result) -> None:
    assert result.breakdown is not None
    there = result.breakdown.memory_at(64, 1_000_000)
    assert sum(there.values()) == pytest.approx(1_000_000, abs=4)
    assert there["weights"] == WEIGHTS
    assert there["inputs"] == 4 * result.breakdown.memory["inputs"]
    assert there["activations"] > 4 * result.breakdown.memory["activations"]


def test_the_answer_is_plain_data(result: Result) -> None:
    facts = json.loads(json.dumps(result.to_json(at=[64])))
    assert facts["predictions"][0]["batch"] == 64
    assert facts["site"]["provider"] == "stepscope_input_provider"


def test_other_devices_are_predicted_from_the_recorded_step(result: Result) -> None:
    targets = parse_targets("A100,L4,MI210", read_prices())
    found = project(result, targets, Wanted((16, 8), 1000, ranks=4, bandwidth_gbps=1.0))
    assert (found.basis, found.known > 0.5) == ("operations", True)
    assert [row.name for row in found.devices] == ["A100", "L4", "MI210"]
    for row in found.devices:
        assert [one.batch for one in row.predictions] == [8, 16]
        for one in row.predictions:
            for range_ in (one.ms, one.throughput, one.hours, one.bytes, one.usd, one.joules):
                assert range_ is None or range_.low <= range_.value <= range_.high
            assert one.throughput.value == pytest.approx(1e3 * one.batch / one.ms.value)
            assert one.hours.value == pytest.approx(1000 / one.throughput.value / 3600)
            assert one.fits == "yes"
        assert [one.ranks for one in row.ranks] == [2, 4]
        alone = next(one for one in row.predictions if one.batch == 16)
        for one in row.ranks:  # all-reduces over a slow link cost time
            assert one.ms.value > alone.ms.value
            rate = one.efficiency * one.ranks * alone.throughput.value
            assert one.throughput.value == pytest.approx(rate)
    a100, l4, mi210 = (row.predictions[0] for row in found.devices)
    assert a100.ms.value <= l4.ms.value
    assert a100.usd is not None
    assert a100.usd.value == pytest.approx(1.48 * a100.hours.value)
    assert a100.joules is not None
    assert a100.joules.value == pytest.approx(400 * a100.ms.value / 1e3 / 8)
    assert (mi210.usd, mi210.joules) == (None, None)  # neither price nor power are known
    assert a100.bytes is not None
    assert a100.bytes.value == result.profile.predict(8)["bytes"] - result.host_bytes


def test_what_was_measured_is_shown_if_other_devices_cannot_be_predicted(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.faces.terminal.batch import _elsewhere

    predicted = _elsewhere("A100", None, Wanted((16,)))
    assert predicted(replace(result, capture=None)) is None
    assert "warning: other devices cannot be predicted: no step was" in capsys.readouterr().err
    assert predicted(result) is not None


def test_batch_sizes_for_other_devices_can_be_given(result: Result) -> None:
    found = project(result, parse_targets("A100", read_prices()), Wanted((64, 16)))
    (row,) = found.devices
    assert [(one.batch, one.extrapolated) for one in row.predictions] == [(16, False), (64, True)]
    assert (row.ranks, found.bandwidth_gbps) == ([], None)


def test_the_edit_of_a_result_changes_its_number(result: Result) -> None:
    text = Path(result.entry.path).read_text()
    edit = edit_site(text, result.entry.site, 48)
    assert edit.apply(text) == text.replace("batch_size=16", "batch_size=48")


# -- scripts


def test_a_script_runs_with_another_number_in_memory(session: Session, tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT)
    result = session.profile(script, plan=PLAN)
    assert result.entry.kind == "script"
    assert [point.batch for point in result.profile.points] == [3, 6, 12, 18, 24]
    *_, low, middle, high = [point.bytes for point in result.profile.points]
    assert high - middle == middle - low > 0
    assert script.read_text() == SCRIPT
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_an_editor_holds_is_run_in_place_of_the_file(session: Session, tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT)
    plan = Plan(points=2, rounds=1, effort=PLAN.effort, breakdown=False, estimate=False)
    result = session.profile(script, unsaved={str(script): SCRIPT.replace("= 12", "= 6")}, plan=plan)
    assert [point.batch for point in result.profile.points] == [6, 9]


def test_a_setting_is_read_from_an_edited_copy(session: Session, tmp_path: Path) -> None:
    script = written(
        tmp_path,
        SCRIPT.replace(
            "batch_size = 12  # the only one",
            "import json\nbatch_size = json.load(open('settings.json'))['batch_size']",
        ),
    )
    settings = written(tmp_path, '{"batch_size": 4, "epochs": 4}', "settings.json")
    plan = Plan(points=2, rounds=1, effort=PLAN.effort, breakdown=False, estimate=False)
    result = session.profile(script, plan=plan, folder=tmp_path)
    first, second = result.profile.points
    assert (first.batch, second.batch) == (4, 6)
    assert second.bytes > first.bytes
    assert settings.read_text() == '{"batch_size": 4, "epochs": 4}'


def test_the_longest_inputs_are_taken(session: Session, tmp_path: Path) -> None:
    plan = Plan(
        points=2, rounds=1, effort=Effort(least=2, most=20, seconds=0), breakdown=False, estimate=False
    )

    def profile(length: str) -> Profile:
        text = SCRIPT.replace("batch_size, 32)", f"batch_size, {length}, 32)")
        return session.profile(written(tmp_path, text), plan=plan).profile

    varying, longest = profile("32 if step % 4 == 3 else 8"), profile("32")
    assert any("the longest were taken" in words for words in varying.warnings)
    assert [point.bytes for point in varying.points] == [point.bytes for point in longest.points]


# -- failures


def test_an_exception_is_told_at_its_line(session: Session, tmp_path: Path) -> None:
    broken = PROVIDERS.replace("return self.b(x)", "return self.b(x @ x)")
    with pytest.raises(BatchError, match="RuntimeError") as caught:
        session.profile(written(tmp_path, broken), plan=PLAN)
    assert caught.value.file == str(tmp_path / "train.py")
    assert caught.value.line == 15


def test_a_script_that_gives_up_is_told_with_its_last_words(session: Session, tmp_path: Path) -> None:
    text = "import sys\nbatch_size = 4\nprint('usage: …', file=sys.stderr)\nsys.exit('no such --lr')\n"
    with pytest.raises(BatchError, match=r"SystemExit at .*train.py:4.*no such --lr"):
        session.profile(written(tmp_path, text), plan=PLAN)
    quits = text.replace("sys.exit('no such --lr')", "sys.exit(2)")
    with pytest.raises(BatchError, match="its last output: usage: …"):
        session.profile(written(tmp_path, quits), plan=PLAN)


def test_a_syntax_error_is_told_at_its_line(session: Session, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="syntax error at") as caught:
        session.profile(written(tmp_path, "x = 1\ndef f(:\n"), plan=PLAN)
    assert caught.value.line == 2


def test_a_hang_is_told_at_its_line(session: Session, tmp_path: Path) -> None:
    hung = SCRIPT.replace("    optimizer.zero_grad()", "    import time; time.sleep(1000)")
    plan = Plan(points=2, rounds=1, timeout_s=5.0, estimate=False)
    with pytest.raises(BatchError, match="timed out after") as caught:
        session.profile(written(tmp_path, hung), plan=plan)
    assert caught.value.line == 11


def test_a_script_that_never_steps_is_told(session: Session, tmp_path: Path) -> None:
    idle = "import torch\nbatch_size = 4\n"
    with pytest.raises(BatchError, match="no optimizer stepped"):
        session.profile(written(tmp_path, idle), plan=PLAN)


def test_out_of_memory_is_no_failure(session: Session, tmp_path: Path) -> None:
    greedy = SCRIPT.replace(
        "    optimizer.zero_grad()",
        "    if batch_size > 13: raise torch.OutOfMemoryError('out of memory')\n    optimizer.zero_grad()",
    )
    result = session.profile(written(tmp_path, greedy), plan=PLAN)
    assert [point.batch for point in result.profile.points] == [3, 6, 9, 11, 12]
    assert result.profile.too_large == 18


def test_several_batch_sizes_are_asked_about_and_nothing_runs(session: Session, tmp_path: Path) -> None:
    text = "raise SystemExit(9)\na = DataLoader(x, batch_size=4)\nb = DataLoader(y, batch_size=8)\n"
    with pytest.raises(AmbiguousBatchSize) as caught:
        session.profile(written(tmp_path, text), plan=PLAN)
    assert [site.value for site in caught.value.candidates] == [4, 8]


def test_a_cancelled_profile_leaves_the_session_usable(session: Session, tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT)
    session.cancel.set()
    with pytest.raises(Cancelled):
        session.profile(script, plan=PLAN)
    session.cancel.clear()
    plan = Plan(points=1, rounds=1, effort=PLAN.effort, breakdown=False, estimate=False)
    assert session.profile(script, plan=plan).profile.points[0].batch == 12


# -- the command


def test_the_command_finds_without_running(tmp_path: Path) -> None:
    script = written(tmp_path, "batch_size = 5\nraise SystemExit(9)\n")
    found = CliRunner().invoke(stepscope, ["batch", "--find", "--json", str(script)])
    assert found.exit_code == 0
    assert json.loads(found.output)["site"]["line"] == 1


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(stepscope, ["batch", str(tmp_path / "nowhere.py")])
    assert found.exit_code == 2
    assert "cannot read" in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fits", "toaster"], "expected a capacity such as 24GB"),
        (["--on", "Z9"], "unknown device or instance 'Z9'"),
        (["--on", "A100", "--prices", "/no/such/file"], "cannot read prices from /no/such/file"),
        (["--html", "/no/such/folder/page.html"], "/no/such/folder"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(tmp_path: Path, words: list[str], said: str) -> None:
    script = written(tmp_path, "batch_size = 5\nopen('ran', 'w')\n")
    found = CliRunner().invoke(stepscope, ["batch", *words, str(script)])
    assert (found.exit_code, said in found.output) == (2, True)
    assert "batch size 5 (1 of" not in found.output


def test_the_text_says_what_a_person_asks(result: Result) -> None:
    from rich.console import Console

    from stepscope.faces.terminal.batch_text import print_batch

    console = Console(width=100, record=True, file=io.StringIO())
    print_batch(console, result, at=[64])
    text = console.export_text()
    narrow = Console(width=62, record=True, file=io.StringIO())
    print_batch(narrow, result, at=[64])
    rows = narrow.export_text().partition("Lines, a step")[2].splitlines()
    assert not [row for row in rows if "…" in row[:56]]  # names give way, numbers do not
    assert "batch size 16" in text
    assert "held back" in text
    assert "Memory at its peak" in text
    assert "train.py:14" in text or "train.py:13" in text
