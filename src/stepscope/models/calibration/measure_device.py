"""The process that times operators on a device: a request as JSON on stdin, times as JSON on stdout.

The same calls are timed on a GPU, by events, and on a CPU, by the clock. Imports torch.
"""

import json
import sys
import time
from typing import Any

import torch

from stepscope.models.calibration.calibration import cpu_model
from stepscope.models.calibration.device_calibration import PRECISIONS
from stepscope.models.calibration.measured_inputs import Call, prepare

_WARM_UP = 2  # calls: libraries choose and load kernels at the first
_CALLS, _ROUNDS = 5, 3  # timed in a row, of which the shortest time counts; chosen
# A kernel only waits while calls are queued, so that the device never waits for the CPU.
_WAITING_CYCLES = 4_000_000  # 2 ms at 2 GHz; chosen


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
    on_gpu, name, times = device.type == "cuda", "", {}
    if not on_gpu or torch.cuda.is_available():
        name = torch.cuda.get_device_name(device) if on_gpu else cpu_model()
        with torch.device(device):
            for signature in request["operators"]:
                if time.monotonic() <= end:
                    times[signature] = [_time_ns(signature, each, on_gpu) for each in PRECISIONS]
    return {"torch": str(torch.__version__), "name": name, "operators": times}


def _time_ns(signature: str, precision: str, on_gpu: bool) -> float | None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    call = prepare(signature, half=precision == "half")
    if call is None:
        return None
    try:
        for _ in range(_WARM_UP):
            call()
        return min(_round_ns(call, on_gpu) for _ in range(_ROUNDS)) / _CALLS
    except RuntimeError:  # out of memory, or no kernel
        return None


def _round_ns(call: Call, on_gpu: bool) -> float:
    """The time of some calls; on a GPU of calls that were queued before it begins."""
    if not on_gpu:
        begun_ns = time.perf_counter_ns()
        _repeat(call)
        return float(time.perf_counter_ns() - begun_ns)
    cuda: Any = torch.cuda  # parts of it have no types
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(_WAITING_CYCLES)
    begin.record()
    _repeat(call)
    end.record()
    cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


def _repeat(call: Call) -> None:
    for _ in range(_CALLS):
        call()


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
