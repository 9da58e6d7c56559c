"""The process that times operators on a device: a request as JSON on stdin, times as JSON on stdout.

The same calls are timed on a GPU, by events, and on a CPU, by the clock. Imports torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepscope.models.calibration.calibration import cpu_model
from stepscope.models.calibration.device_calibration import PRECISIONS
from stepscope.models.calibration.measured_inputs import Call, prepare

_WARM_UP = 2  # calls: libraries choose and load kernels at the first
_CALLS, _ROUNDS = 5, 3  # timed in a row, of which the shortest time counts; chosen
# Cycles of a kernel that only waits while calls are queued, so that the device never waits for the
# CPU: 2 ms at 2 GHz.
_WAITING_CYCLES = 4_000_000


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Times of operators on a device, ns, by signature and precision.

    Args:
        request: `device`, as torch names it; `operators`, signatures, the most important first;
            `seconds`, after which no further one begins.

    Returns:
        `torch`, the device's `name`, and `operators`: by signature a time for each of `PRECISIONS`,
        None where the call is not possible.
    """
    device, end = torch.device(request["device"]), time.monotonic() + request["seconds"]
    if device.type == "cuda" and not torch.cuda.is_available():
        return {"torch": str(torch.__version__), "name": "", "operators": {}}
    times: dict[str, list[float | None]] = {}
    with torch.device(device):
        for signature in request["operators"]:
            if time.monotonic() > end:
                break
            times[signature] = [_time_ns(signature, precision, device) for precision in PRECISIONS]
    return {"torch": str(torch.__version__), "name": _name(device), "operators": times}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def _time_ns(signature: str, precision: str, device: torch.device) -> float | None:
    clock = _by_events if device.type == "cuda" else _by_clock
    with _tf32(precision == "tf32"):
        call = prepare(signature, half=precision == "half")
        if call is None:
            return None
        try:
            for _ in range(_WARM_UP):
                call()
            return min(clock(call) for _ in range(_ROUNDS)) / _CALLS
        except RuntimeError:  # out of memory, or no kernel
            return None
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def _by_events(call: Call) -> float:
    """The device's time of some calls that were queued before it begins, ns."""
    cuda: Any = torch.cuda  # parts of it have no types
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(_WAITING_CYCLES)
    begin.record()
    _repeat(call)
    end.record()
    cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


def _by_clock(call: Call) -> float:
    begin = time.perf_counter_ns()
    _repeat(call)
    return float(time.perf_counter_ns() - begin)


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(_CALLS):
        call()


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
