"""The folder that `jax.profiler.trace` writes: a folder for each run, a file for each host."""

from __future__ import annotations

from pathlib import Path

import pytest
from xspaces import Slice, xspace

import stepscope
from stepscope.read.rank_folder import trace_files

PROFILE = xspace({"/host:CPU": {"python": [Slice("train", 0, 9, step_num=1)]}})


def recorded(folder: Path, run: str, *hosts: str) -> None:
    inside = folder / "plugins/profile" / run
    inside.mkdir(parents=True)
    for host in hosts:
        (inside / f"{host}.xplane.pb").write_bytes(PROFILE)
        (inside / f"{host}.trace.json.gz").write_bytes(b'[{"ph": "X", "name": "a", "ts": 1}]')


def test_the_profile_is_read_and_not_its_copy_as_json(tmp_path: Path) -> None:
    recorded(tmp_path, "2026_01_01", "vm")
    trace = stepscope.open(tmp_path, cache=False)
    assert trace["steps"]["step"].tolist() == [1]
    assert not len(trace["warnings"])


def test_of_several_runs_the_last_is_read_and_the_others_are_told(tmp_path: Path) -> None:
    recorded(tmp_path, "2026_01_02", "a", "b")
    recorded(tmp_path, "2026_01_01", "a")
    files, warnings = trace_files(tmp_path)
    assert [file.relative_to(tmp_path / "plugins/profile").as_posix() for file in files] == [
        "2026_01_02/a.xplane.pb",
        "2026_01_02/b.xplane.pb",
    ]
    assert [(code, count) for code, _, count in warnings] == [("other_run", 1)]


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("run/vm.trace.json.gz", False),  # a part of the profile as JSON
        ("run/perfetto_trace.json.gz", False),  # written beside it
        ("run/other.trace.json.gz", True),  # of a machine whose profile is missing
        ("run/rank1.json", True),
        ("rank1.json", True),  # beside the folder of JAX
    ],
)
def test_traces_that_are_no_part_of_the_profile_are_told(tmp_path: Path, name: str, is_told: bool) -> None:
    recorded(tmp_path, "2026_01_01", "vm")
    path = tmp_path / name.replace("run", "plugins/profile/2026_01_01")
    path.write_bytes(b'[{"ph": "X", "name": "a", "ts": 1}]')
    files, warnings = trace_files(tmp_path)
    assert [file.name for file in files] == ["vm.xplane.pb"]
    message = f"skipped traces beside the profile; to read one, give it alone: {path.name}"
    assert warnings == [("other_trace", message, 1)] * is_told


def test_machines_may_write_one_run_into_folders_of_their_own(tmp_path: Path) -> None:
    for machine in ("a", "b"):
        recorded(tmp_path / machine, "2026_01_02", f"vm-{machine}")
    recorded(tmp_path / "a", "2026_01_01", "vm-a")
    files, warnings = trace_files(tmp_path)
    assert [file.name for file in files] == ["vm-a.xplane.pb", "vm-b.xplane.pb"]
    assert [(code, count) for code, _, count in warnings] == [("other_run", 1)]


def test_the_folder_of_a_run_can_be_given_itself(tmp_path: Path) -> None:
    recorded(tmp_path, "2026_01_01", "vm")
    files, warnings = trace_files(tmp_path / "plugins/profile/2026_01_01")
    assert [file.name for file in files] == ["vm.xplane.pb"]
    assert warnings == []


def test_of_the_logs_of_tensorboard_the_last_run_is_read(tmp_path: Path) -> None:
    recorded(tmp_path / "train", "2026_01_02", "vm")
    recorded(tmp_path / "validation", "2026_01_01", "vm")
    (tmp_path / "train/events.out.tfevents.17.vm").write_bytes(b"brain.Event:2")
    files, warnings = trace_files(tmp_path)
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        "train/plugins/profile/2026_01_02/vm.xplane.pb"
    ]
    assert [code for code, _, _ in warnings] == ["other_run"]
