"""Operators timed on a device: which, how long, for which traces, and that predictions use them.

Here the device is the CPU: the way is the same but for the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph
from stepscope.models.calibration.calibration import cpu_model, write_calibration
from stepscope.models.calibration.device_calibration import (
    DeviceCalibration,
    calibrate_device,
    calibrated_share,
    find_device_calibration,
)
from stepscope.models.calibration.measure_device import measure
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

MATRICES = (
    'Input_Dims=[[{0},{0}],[{0},{0}]] Input_type=["float","float"] '
    'Input_Strides=[[{0},1],[{0},1]] Concrete_Inputs=["",""]'
)
STEP = """
    main     |  0 400 | ProfilerStep#0
    main     |  5  25 | aten::mm         | {large}
    main     | 10  15 | cudaLaunchKernel | corr=1
    main     | 30  50 | aten::{other}    | {small}
    main     | 35  40 | cudaLaunchKernel | corr=2
    stream 7 | 20 920 | sgemm_128x64     | corr=1
    stream 7 | 920 1020 | sgemm_32x32    | corr=2
"""


COMPILED = """
    main     |  60  80 | Torch-Compiled Region: 0/0 | seq=1
    main     |  65  70 | cudaLaunchKernel | corr=3
    stream 7 | 1020 2020 | triton_poi_fused_add_0 | corr=3
"""


def drawn(
    device: str, other: str = "mm", version: str = str(torch.__version__), large: int = 64, more: str = ""
) -> Trace:
    text = STEP.format(large=MATRICES.format(large), small=MATRICES.format(8), other=other) + more
    devices = ({"id": 0, "name": device, "computeMajor": 9},)
    return annotate(drawn_trace(text, devices=devices, framework_version=version))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked of the measuring process, which is this one."""
    asked: list[dict[str, Any]] = []

    def in_child(module: str, request: dict[str, Any]) -> dict[str, Any]:
        assert module == "measure_device"
        asked.append(request)
        return measure(request)

    monkeypatch.setattr("stepscope.models.calibration.device_calibration.in_child", in_child)
    return asked


def test_operators_are_timed_in_each_precision_and_kept(requests: list[dict[str, Any]]) -> None:
    trace = drawn(cpu_model())
    calibration = calibrate_device(trace, device="cpu")
    assert [text[:4] for text in calibration.operators] == ['["mm', '["mm']
    assert requests[0]["operators"][0].startswith('["mm",[[64,64]')  # the longest first
    assert all(time and time > 0 for times in calibration.operators.values() for time in times)
    assert calibrated_share(trace, calibration) == 1.0
    found = find_device_calibration(trace.metadata)
    assert found is not None
    assert asdict(found) == {
        **asdict(calibration),
        "operators": {k: list(v) for k, v in calibration.operators.items()},
    }


def test_captures_of_a_device_share_it_and_add_what_they_have(requests: list[dict[str, Any]]) -> None:
    first = calibrate_device(drawn(cpu_model()), device="cpu")
    calibrate_device(drawn(cpu_model()), device="cpu")
    both = calibrate_device(drawn(cpu_model(), other="matmul"), device="cpu")
    assert [len(request["operators"]) for request in requests] == [2, 1]
    assert set(first.operators) < set(both.operators)


def test_device_time_of_no_operator_is_not_calibrated(requests: list[dict[str, Any]]) -> None:
    """Compiled code launches 1,000 of the 2,000 us itself."""
    trace = drawn(cpu_model(), more=COMPILED)
    assert calibrated_share(trace, calibrate_device(trace, device="cpu")) == pytest.approx(0.5)


def test_time_ends_where_it_has_to() -> None:
    request = {"device": "cpu", "operators": ['["mm",[],[],[],[]]'], "seconds": -1.0}
    assert measure(request)["operators"] == {}
    assert measure({**request, "seconds": 60.0})["operators"] == {'["mm",[],[],[],[]]': [None] * 3}


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (lambda: drawn("NVIDIA H200"), "the trace was recorded on NVIDIA H200, but this machine has"),
        (lambda: drawn(cpu_model(), version="1.0"), "recorded with torch 1.0"),
    ],
)
def test_another_device_or_torch_is_refused(
    requests: list[dict[str, Any]], trace: Callable[[], Trace], reason: str
) -> None:
    with pytest.raises(ChangeError, match=reason):
        calibrate_device(trace(), device="cpu")
    assert requests


def kernels_us(graph: Graph, change: str) -> np.ndarray:
    after = parse_request(change, CHANGES).apply(graph)
    return after.tasks["duration_ns"][after.on_device] / 1e3


@pytest.mark.parametrize(("change", "ratio"), [("amp", 0.25), ("tf32", 0.5)])
def test_operators_that_were_timed_gain_what_they_gained_alone(change: str, ratio: float) -> None:
    """The other follows from its size, and says how much was timed."""
    trace = drawn("NVIDIA H200", large=4096)
    graph = build_graph(trace)
    by_size = kernels_us(graph, change)
    version = str(torch.__version__)
    signature = next(text for text in _signatures(trace) if "4096" in text)
    calibration = DeviceCalibration("NVIDIA H200", version, "2026-11-28", {signature: (800.0, 400.0, 200.0)})
    write_calibration(calibration.path, asdict(calibration))
    times = kernels_us(graph, change)
    casts = 2 * 6 * 4096**2 / (4800 * 0.802) / 1e3 + 2 if change == "amp" else 0
    assert times.tolist() == [pytest.approx(900 * ratio + casts, rel=0.01), by_size[1]]
    assert "operators with 90% of the device time" in CHANGES[change].assumed(graph)[-1]


def _signatures(trace: Trace) -> list[str]:
    from stepscope.models.calibration.calibration import find_operators

    operators = find_operators(trace, trace.events.text("category").mask("cpu_op"))
    return [call.signature for call in operators.calls if call]
