"""What is advised for data loading: gains of the patch shown, cores, restarts, and where the number is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from drawn_findings import found

from stepscope.trace.recorded_steps import worker_restarts

ALONE = """
    main | 0 10000 | ProfilerStep#0
    main | 10 9010 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 9100 9200 | aten::mm | seq=1
    main | 9300 9400 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 9500 9600 | Optimizer.step#SGD.step
"""
CALL = "DataLoader(data, batch_size=16)"


def capture(cores: int = 2, call: str = CALL, workers: int = 0, **facts: Any) -> dict[str, Any]:
    created = {"what": "loader", "class": "DataLoader", "file": "train.py", "line": 1}
    return {
        "cpus_usable": cores,
        "cpu_count": cores,
        "loaders": [{"workers": workers}],
        "created": [created | {"call": call, "source": f"loader = {call}"}],
        **facts,
    }


def test_the_gain_is_of_the_workers_that_the_patch_asks_for() -> None:
    """Two processes on two cores halve 9 ms of loading; with free loading it would be 90 %."""
    finding = found("input_bound", ALONE, capture=capture())
    assert finding is not None
    assert finding.patch is not None
    assert "num_workers=2" in finding.patch.after
    assert finding.share == pytest.approx(0.5, abs=0.06)
    low, high = finding.gain.stated_ms
    assert 3 < low < finding.gain.ms < high < 6


def test_workers_would_each_load_all_of_a_stream() -> None:
    """So they are no patch, but advice with what each of them has to skip."""
    streams = capture(loaders=[{"workers": 0, "iterable": True}])
    finding = found("input_bound", ALONE, capture=streams)
    assert finding is not None
    assert finding.patch is None
    assert re.search(r"^Load batches in worker processes.*get_worker_info", finding.advice)


def test_cores_that_the_process_may_not_use_load_nothing() -> None:
    """Two of a machine's 64, as in a container."""
    all_of_few, few_of_many = (
        found("input_bound", ALONE, capture={**capture(), "cpu_count": count}) for count in (2, 64)
    )
    assert all_of_few is not None
    assert all_of_few == few_of_many


def test_free_loading_is_an_upper_bound() -> None:
    """The waits of four steps give a range, and no loader ends all of them."""
    lines, at = [], 0
    for step, wait in enumerate((600, 610, 620, 1200)):
        lines += [
            f"main | {at} {at + wait + 300} | ProfilerStep#{step}",
            f"main | {at + 1} {at + wait} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            f"main | {at + wait + 10} {at + wait + 20} | cudaLaunchKernel | corr={step + 1}",
            f"stream 7 | {at + wait + 21} {at + wait + 290} | gemm | corr={step + 1}",
        ]
        at += wait + 300
    finding = found("input_bound", "\n".join(lines))
    assert finding is not None
    assert finding.gain.stated_ms == (0.0, finding.gain.ms)


def test_batches_that_come_in_bursts_are_waited_for_in_few_steps() -> None:
    """After a warm-up step every third step waits 2.4 ms for data and then takes 0.6 ms, as others do."""
    lines, begin = [], 0
    for step, wait in enumerate([9_000] + [0, 0, 2_400] * 4):
        work, end = begin + wait, begin + wait + 600
        lines += [f"main | {begin} {end} | ProfilerStep#{step}", f"main | {work + 10} {work + 20} | aten::mm"]
        if wait:
            lines.append(f"main | {begin} {work} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter")
        lines.append(f"main | {work + 20} {work + 30} | cudaLaunchKernel | corr={step}")
        lines.append(f"stream 7 | {work + 40} {end} | sgemm | corr={step}")
        begin = end
    finding = found("input_bound", "\n".join(lines))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.8, abs=0.03)


def test_on_one_core_workers_are_no_advice() -> None:
    finding = found("input_bound", ALONE, capture=capture(cores=1))
    assert finding is not None
    assert finding.patch is None
    assert finding.advice.startswith("Workers would share 1 core with the training loop")


@pytest.mark.parametrize(("workers", "more"), [(1, True), (2, False), (4, False)])
def test_more_workers_than_cores_are_no_advice(workers: int, more: bool) -> None:
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    finding = found("input_bound", text, capture=capture(workers=workers))
    assert finding is not None
    assert ("more workers or a larger prefetch_factor" in finding.advice) is more


@pytest.mark.parametrize(("workers", "iterable"), [(2, True), (1, True), (2, False)])
def test_workers_that_share_a_stream_should_each_decode_their_own_part(workers: int, iterable: bool) -> None:
    loaders = [{"workers": workers, "iterable": iterable}]
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    finding = found("input_bound", text, capture=capture() | {"loaders": loaders})
    assert finding is not None
    assert ("get_worker_info" in finding.advice) is (iterable and workers > 1)


def restarted(starts: int, loaders: int = 1, datasets: int = 1) -> dict[str, Any]:
    """100 steps in 2 s after the start-up; each start of workers costs 60 ms, its first batch 40."""
    times = {"starting_ns": 40_000_000, "stopping_ns": 20_000_000, "first_ns": 42_000_000}
    workers = {name: starts * ns for name, ns in times.items()}
    workers |= {"starts": starts, "workers": 2, "loaders": loaders, "datasets": datasets}
    workers |= {"first": starts, "batches": 90, "waiting_ns": 180_000_000}
    run = {"ended": True, "elapsed_ns": 5_000_000_000, "steps": 100, "data_loading_ns": 0, "places": []}
    stages = {"start_up": 3_000_000_000, "training_steps": 2_000_000_000}
    return {"run_shares": run | {"stages_ns": stages, "worker_starts": workers}}


def test_workers_that_start_for_every_epoch_are_kept() -> None:
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    call = "DataLoader(data, num_workers=2)"
    finding = found("restarted_workers", text, capture=capture(call=call, workers=2, **restarted(11)))
    assert finding is not None
    assert finding.patch is not None
    assert "starts its 2 workers again 10 times" in finding.what
    assert finding.patch.after == "loader = DataLoader(data, num_workers=2, persistent_workers=True)"
    assert finding.of == "run"
    assert finding.share == pytest.approx(10 * 0.1 / 2)
    assert finding.gain.stated_ms == pytest.approx((6.0, 12.5))  # per step


@pytest.mark.parametrize(("starts", "restarts"), [(1, None), (2, 1), (3, 2)])
def test_the_first_start_of_workers_is_no_restart(starts: int, restarts: int | None) -> None:
    found = worker_restarts(restarted(starts))
    assert (found and found.restarts) == restarts


def test_a_loader_that_is_made_for_every_epoch_is_made_once() -> None:
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    finding = found("restarted_workers", text, capture=capture(workers=2, **restarted(11, loaders=11)))
    assert finding is not None
    assert finding.patch is None
    assert finding.advice.startswith("Create the DataLoader once")


def test_workers_that_start_for_ever_other_data_are_started_again() -> None:
    """As for each stage of a curriculum; training, validation and test data need their own."""
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    stages = capture(workers=2, **restarted(11, loaders=11, datasets=11))
    finding = found("restarted_workers", text, capture=stages)
    assert finding is not None
    assert finding.patch is None
    assert "starts its 2 workers again 8 times" in finding.what
    few = capture(workers=2, **restarted(3, loaders=3, datasets=3))
    assert found("restarted_workers", text, capture=few) is None


def test_workers_that_start_once_are_no_finding() -> None:
    text = ALONE.replace("_SingleProcess", "_MultiProcessing")
    assert found("restarted_workers", text, capture=capture(workers=2, **restarted(1))) is None


SCRIPT = """import yaml
config = yaml.safe_load(open("config.yaml"))
loader = {call}
"""


@pytest.mark.parametrize(
    ("call", "script", "command", "file", "after"),
    [
        (
            'DataLoader(data, num_workers=config["workers"])',
            SCRIPT,
            (),
            "config.yaml",
            "workers: 2  # processes",
        ),
        ('DataLoader(data, num_workers=config["other"])', SCRIPT, (), "", ""),
        ("DataLoader(data, **config)", SCRIPT, (), "", ""),
        ("DataLoader(data, num_workers=W)", "W = 0\n\nloader = {call}\n", (), "train.py", "W = 2"),
        (
            "DataLoader(data, num_workers=args.workers)",
            'parser.add_argument("--workers", default=0)\n\nloader = {call}\n',
            (),
            "train.py",
            'parser.add_argument("--workers", default=2)',
        ),
        (
            "DataLoader(data, num_workers=args.workers)",
            'parser.add_argument("--workers", default=4)\n\nloader = {call}\n',
            ("--workers=0",),
            "",
            "",
        ),
        *(
            (
                "DataLoader(data, num_workers=args.workers)",
                'parser.add_argument("-j", "--workers", "--procs", default=4)\n\nloader = {call}\n',
                command,
                "",
                "",
            )
            for command in (("-j", "0"), ("-j0",), ("--procs", "0"), ("--work=0",))
        ),
    ],
)
def test_the_patch_is_where_the_number_is_written(
    tmp_path: Path, call: str, script: str, command: tuple[str, ...], file: str, after: str
) -> None:
    (tmp_path / "config.yaml").write_text("batch_size: 16\nworkers: 0  # processes\n")
    path = tmp_path / "train.py"
    path.write_text(script.format(call=call))
    facts = capture(call=call, command=["train.py", *command], cwd=str(tmp_path))
    facts["created"][0] |= {"file": str(path), "line": 3}
    finding = found("input_bound", ALONE, capture=facts)
    assert finding is not None
    patch = finding.patch
    assert (Path(patch.file).name, patch.after) == (file, after) if file else patch is None
