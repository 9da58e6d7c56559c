"""Memory timelines as PyTorch's profiler exports them, against what PyTorch itself computes."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.errors import IngestError
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.models.memory import memory_facts
from stepscope.models.memory.history import MemoryChanges
from stepscope.models.memory.owners import KINDS

CREATE, DESTROY, VERSION, BEFORE = 2, 4, 3, 1
RAW = [
    [-1, BEFORE, 1000, 0],
    [5_000, CREATE, 400, 4],
    [9_000, VERSION, -400, 4],
    [9_000, VERSION, 400, 6],
    [12_000, CREATE, 50, 7],
    [20_000, DESTROY, -400, 6],
]
LEVELS = [
    [5, 5, 9, 12, 20],
    [
        [0, 1000, 0, 0, 0, 0, 0, 0, 0],
        [0, 1000, 0, 0, 0, 400, 0, 0, 0],
        [0, 1000, 0, 0, 0, 0, 0, 400, 0],
        [0, 1000, 0, 0, 0, 0, 0, 400, 50],
        [0, 1000, 0, 0, 0, 0, 0, 0, 50],
    ],
]


def written(folder: Path, content: Any, name: str) -> Path:
    path = folder / name
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize(
    ("content", "name"), [(RAW, "a.raw.json.gz"), (LEVELS, "a.json"), (LEVELS, "a.json.gz")]
)
def test_both_forms_tell_the_same(content: Any, name: str, tmp_path: Path) -> None:
    path = written(tmp_path, content, name)
    (facts,) = memory_facts(stepscope.open(path, cache=False))
    assert (facts.peak_bytes, facts.peak_ns, facts.has_lifetimes) == (1450, 7_000, False)
    held = [(one.name, one.bytes) for one in facts.kinds]
    assert held == [("weights", 1000), ("temporaries", 400), ("unknown", 50)]


@pytest.mark.parametrize("command", ["analyze", "contexts", "whatif"])
def test_other_commands_say_which_one_to_use(command: str, tmp_path: Path) -> None:
    path = written(tmp_path, LEVELS, "a.json")
    result = CliRunner().invoke(stepscope_command, [command, str(path)])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"is a memory timeline; use: stepscope memory {path}\n")


def test_two_of_them_can_be_compared(tmp_path: Path) -> None:
    paths = [str(written(tmp_path, LEVELS, "a.json")), str(written(tmp_path, RAW[:2], "b.json"))]
    result = CliRunner().invoke(stepscope_command, ["diff", *paths, "--json"])
    (device,) = json.loads(result.stdout)["memory"]
    assert (device["before_bytes"], device["after_bytes"]) == (1450, 1400)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[1, 2], [[0] * 9]], "sizes for each time"),
        ([[1], [[0] * 4]], "found other or damaged JSON"),
        ([[1], [[0] * 12]], "expected 9 sizes"),
        ([[1, 2, 3, 9]], "expected categories 0 to 7"),
        ([[1, 2, 0, 3]], "holds no change"),
        ([[1, 2, 3]], "found other or damaged JSON"),
        (b"[[1, 2, 3, 4], [5", "found other or damaged JSON"),
        ([[1, 2, 2**70, 3]], "64 bits"),
    ],
)
def test_damaged_ones_are_refused_in_one_line(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=message) as caught:
        stepscope.open(written(tmp_path, content, "a.json"), cache=False)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What PyTorch writes of a step of a small model on the CPU."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("exported")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as run:
        for _ in range(2):
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for name in ("a.json", "a.json.gz", "a.raw.json.gz"):
            run.export_memory_timeline(str(folder / name), device="cpu")
    return folder


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.raw.json.gz"])
def test_each_category_has_the_bytes_that_pytorch_counts(exported: Path, name: str) -> None:
    times, sizes = json.loads((exported / "a.json").read_text())
    trace = stepscope.open(exported / name, cache=False)
    usage = MemoryChanges.of_kinds(trace, "device")
    # At the end of the recording, and in all at each of PyTorch's times (us).
    last = np.array(sizes)[-1, 1:]
    names = ("weights", "optimizer state", "inputs", "temporaries", "activations", "gradients")
    held = dict(zip(KINDS, usage.held(len(usage.time_ns)).tolist(), strict=True))
    assert [held[one] for one in names if one != "temporaries"] == np.delete(last[:6], 3).tolist()
    assert (held["temporaries"], held["unknown"]) == (last[3] + last[6], last[7])
    totals = np.array(sizes).sum(axis=1)
    ends = np.flatnonzero(np.append(np.diff(times) > 0, True))
    times_ns = (usage.time_ns + trace.metadata.origin_ns).tolist()
    now = np.array([int(time / 1000) for time in times_ns])  # as PyTorch rounds them
    counts = np.searchsorted(now, np.array(times)[ends], side="right")
    assert usage.levels[counts].tolist() == totals[ends].tolist()
