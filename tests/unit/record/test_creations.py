"""What the program creates: optimizers, loaders, DDP models, and how loaders load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD as Descent
from torch.utils.data import DataLoader, TensorDataset, dataloader

from stepscope.record.call_sites import is_internal
from stepscope.record.creations import CreationWatch, LoaderWatch, call_at


@pytest.fixture
def watch() -> Iterator[CreationWatch]:
    watch = CreationWatch()
    yield watch
    watch.remove()


def described(watch: CreationWatch) -> dict[str, dict[str, Any]]:
    return {one["class"]: one for one in watch.describe()}


def test_each_call_has_its_file_line_and_source(watch: CreationWatch) -> None:
    optimizer = torch.optim.AdamW(
        [torch.zeros(1)],  # on a line of its own
        lr=0.1,
    )
    assert list(DataLoader([optimizer], batch_size=1, collate_fn=len)) == [1]
    found = described(watch)
    assert {one["what"] for one in found.values()} == {"optimizer", "loader"}
    assert found["AdamW"]["file"] == __file__
    assert found["AdamW"]["call"].startswith("torch.optim.AdamW(\n        [torch.zeros(1)],")
    assert found["AdamW"]["source"].startswith("    optimizer = torch.optim.AdamW(\n")
    assert found["DataLoader"]["call"] == "DataLoader([optimizer], batch_size=1, collate_fn=len)"


def test_a_call_by_another_name_has_a_line_and_no_source(watch: CreationWatch) -> None:
    make = torch.optim.SGD
    make([torch.zeros(1)], lr=0.1)
    line = sys._getframe().f_lineno - 1
    (one,) = watch.describe()
    assert (one["class"], one["line"], one["call"], one["source"]) == ("SGD", line, "", "")


def test_a_class_may_be_imported_by_another_name(watch: CreationWatch) -> None:
    Descent([torch.zeros(1)], lr=0.1)
    (one,) = watch.describe()
    assert (one["class"], one["call"]) == ("SGD", "Descent([torch.zeros(1)], lr=0.1)")


def test_a_loop_of_calls_is_noted_once(watch: CreationWatch) -> None:
    for _ in range(100):
        torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert len(watch.describe()) == 1


def test_anomaly_detection_has_the_line_that_turns_it_on(watch: CreationWatch) -> None:
    torch.autograd.set_detect_anomaly(False)
    line = sys._getframe().f_lineno - 1
    (one,) = watch.describe()
    assert (one["what"], one["line"]) == ("anomaly_detection", line)
    assert one["call"] == "torch.autograd.set_detect_anomaly(False)"


def test_torch_is_left_as_it_was() -> None:
    before = torch.optim.Optimizer.__init__
    CreationWatch().remove()
    assert torch.optim.Optimizer.__init__ is before


@pytest.mark.parametrize("text", ["", "SGD(", "x = SGD(SGD(1))\n"])
def test_what_cannot_be_parsed_or_told_apart_has_no_source(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert call_at(str(tmp_path / "train.py"), 1, "SGD") == {"call": "", "source": ""}


@pytest.mark.parametrize(
    ("text", "in_loop"),
    [
        ("for epoch in range(2):\n    for x in DataLoader(data): pass\n", True),
        ("loader = DataLoader(data)\nfor x in loader: pass\n", False),
        ("for x in DataLoader(data):\n    pass\n", False),
        ("a = 1\n\f\nb = '\u2028'\nloader = DataLoader(data)\nfor x in loader: pass\n", False),
    ],
)
def test_whether_a_loop_makes_it_again(tmp_path: Path, text: str, in_loop: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    lines = text.split("\n")
    line = next(number for number, part in enumerate(lines, 1) if "DataLoader" in part)
    found = call_at(str(tmp_path / "train.py"), line, "DataLoader")
    assert (found["in_loop"], found["source"]) == (in_loop, lines[line - 1])


def test_a_constructor_of_a_library_does_not_create_it(watch: CreationWatch, tmp_path: Path) -> None:
    """As of PyTorch Geometric's loader, or bitsandbytes' optimizers."""
    file = tmp_path / "site-packages" / "geometric.py"
    file.parent.mkdir()
    file.write_text(
        "from torch.utils.data import DataLoader as Base\n"
        "class Loader(Base):\n"
        "    def __init__(self, data):\n"
        "        super().__init__(data, batch_size=2)\n"
    )
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    Loader = names["Loader"]
    Loader([1, 2])
    (one,) = watch.describe()
    assert (one["class"], one["file"], one["call"]) == ("Loader", __file__, "Loader([1, 2])")


DATA = TensorDataset(torch.zeros(4, 1))


def test_loaders_in_use_are_described_and_forgotten_with_their_iterators() -> None:
    watch = LoaderWatch()
    try:
        iterator = iter(DataLoader(DATA, batch_size=2))
        next(iterator)
        (facts,) = watch.describe()
        assert facts == {
            "workers": 0,
            "pin_memory": False,
            "prefetch_factor": None,
            "persistent_workers": False,
            "iterable": False,
        }
        del iterator
        assert watch.describe() == []
    finally:
        watch.remove()


def padded_rows(rows: list[Any]) -> tuple[Any, Any]:
    """All rows as long as 16, and their lengths."""
    padded = torch.zeros(len(rows), 16, 2)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded, torch.tensor([len(row) for row in rows])


def test_the_first_batches_of_a_loader_tell_of_its_padding() -> None:
    watch = LoaderWatch()
    try:
        rows: Any = [torch.ones(4 + place % 5, 2) for place in range(20)]  # of 4 to 8
        iterator = iter(DataLoader(rows, batch_size=5, collate_fn=padded_rows))
        for _ in range(4):
            next(iterator)
        assert "_next_data" not in vars(iterator)
        (facts,) = watch.describe()
        told = [facts[name] for name in ("positions", "padded", "behind_all", "collate", "collate_file")]
        assert told == [320, 4 * (80 - 30), 4 * 5 * 8, "padded_rows", __file__]
    finally:
        watch.remove()


def test_what_was_watched_is_left_as_it_was() -> None:
    before = dataloader._BaseDataLoaderIter.__init__
    watch = LoaderWatch()
    assert dataloader._BaseDataLoaderIter.__init__ is not before
    watch.remove()
    assert dataloader._BaseDataLoaderIter.__init__ is before


def test_torch_is_internal_and_what_is_named_alike_is_not() -> None:
    folder = Path(torch.__file__).parent
    assert is_internal(str(folder / "nn" / "functional.py"))
    assert not is_internal(f"{folder}vision/models/resnet.py")
