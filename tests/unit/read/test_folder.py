from __future__ import annotations

import json
from pathlib import Path

import pytest
from captures import EVENT, write_capture

from stepscope.errors import IngestError
from stepscope.read.rank_folder import number_ranks, trace_files
from stepscope.trace.trace import Metadata


def recorded(rank: int, world_size: int = 1) -> Metadata:
    info = {"distributedInfo": {"rank": rank, "world_size": world_size}}
    return Metadata(ranks=(rank,), world_size=world_size, properties=info)


UNKNOWN = Metadata()


def test_files_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank9.json", "rank2.json", "x7²8.json"):
        (tmp_path / name).write_text(json.dumps([EVENT]))
    write_capture(tmp_path / "rank1.stepscope")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".hidden.json").write_text("[]")
    (tmp_path / "inside").mkdir()
    files, warnings = trace_files(tmp_path)
    assert [file.name for file in files] == [
        "rank1.stepscope",
        "rank2.json",
        "rank9.json",
        "rank10.json",
        "x7²8.json",
    ]
    assert warnings == [("other_file", "skipped files that are not traces: notes.txt", 1)]


def test_a_folder_may_hold_one_folder_per_machine(tmp_path: Path) -> None:
    for name in ("node-10/rank1.json", "node-2/rank0.json", ".trash/rank2.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps([EVENT]))
    (tmp_path / "config.json").write_text('{"hidden_size": 768}')
    (tmp_path / "notes.txt").write_text("hello")
    files, warnings = trace_files(tmp_path)
    assert [f"{file.parent.name}/{file.name}" for file in files] == [
        "node-2/rank0.json",
        "node-10/rank1.json",
    ]
    assert warnings == [("other_file", "skipped files that are not traces: config.json, notes.txt", 2)]


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="the folder has no files; expected one"):
        trace_files(tmp_path)


def test_a_folder_without_traces_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(IngestError, match="none of its 1 files is a trace"):
        trace_files(tmp_path)


@pytest.mark.parametrize(
    ("names", "metadata", "ranks", "codes"),
    [
        (["a", "b"], [recorded(1), recorded(0)], [1, 0], []),
        (["rank3.json", "rank_4.json.gz"], [UNKNOWN] * 2, [3, 4], ["rank_missing"]),
        (["worker0.17.pt.trace.json", "worker1.18.pt.trace.json"], [UNKNOWN] * 2, [0, 1], []),
        (["x_rank-0", "proc1"], [UNKNOWN] * 2, [0, 1], []),
        (["rank7"], [recorded(0)], [0], []),
        (["gpu1_rank0", "process4711.rank1", "local_rank0-rank2"], [UNKNOWN] * 3, [0, 1, 2], []),
        (["frank1", "b"], [UNKNOWN] * 2, [0, 1], ["rank_unknown"]),
        (["a", "b", "c"], [recorded(1), UNKNOWN, recorded(0)], [1, 2, 0], ["rank_unknown"]),
        (["a", "b"], [recorded(0), recorded(0)], [0, 1], ["rank_twice"]),
        (["a", "b"], [recorded(0, 4), recorded(2, 4)], [0, 2], ["rank_missing"]),
        (["gpu20240101.json", "proc1712195495505.json"], [UNKNOWN] * 2, [0, 1], ["rank_unknown"]),
    ],
)
def test_ranks(names: list[str], metadata: list[Metadata], ranks: list[int], codes: list[str]) -> None:
    found, warnings = number_ranks([Path(name) for name in names], metadata)
    assert found == ranks
    assert [code for code, _, _ in warnings] == codes


def test_many_files_without_a_rank_are_one_warning() -> None:
    files = [Path(f"{letter}.json") for letter in "abcdefghijkl"]
    _, warnings = number_ranks(files, [UNKNOWN] * 6 + [recorded(0)] * 6)
    shown = ", ".join(f"{letter}.json as rank {number}" for number, letter in enumerate("abcdef", 1))
    twice = ", ".join(f"{letter}.json (rank 0) as rank {number}" for number, letter in enumerate("hijkl", 7))
    assert warnings == [
        ("rank_unknown", f"neither name nor content says a rank: shown {shown}", 6),
        ("rank_twice", f"of the rank of another file: shown {twice}", 5),
    ]


def test_missing_ranks_are_named() -> None:
    warnings = number_ranks([Path("a"), Path("b")], [recorded(0, 4), recorded(2, 4)])[1]
    assert warnings == [("rank_missing", "no file for rank 1, 3 of 4 ranks", 2)]
    warnings = number_ranks([Path("a")], [recorded(0, 1 << 24)])[1]
    message = "no file for rank 1, 2, 3, 4, 5, 6, 7, 8, … of 16777216 ranks"
    assert warnings == [("rank_missing", message, (1 << 24) - 1)]
