"""A GPU as the engine sees it: multiprocessors, peak rates by precision, bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.facts.roofline import rates_of

SINGLE, TF32, HALF = "fp32", "tf32", "half"
BYTES = {SINGLE: 4, TF32: 4, HALF: 2}  # of an element in memory
_HOPPER = 9  # compute capability from which on products run as persistent kernels


@dataclass(frozen=True)
class Gpu:
    """A device with known rates."""

    name: str
    multiprocessors: int  # how many
    bandwidth: float  # of memory by the data sheet, bytes per ns
    flops: Mapping[str, float]  # peak operations per ns by precision; without those that the device lacks
    persistent: bool  # whether kernels of products copy ahead and share their last wave (Hopper on)

    def rate(self, precision: str) -> float:
        """Peak operations per ns; FP32's where the device lacks TF32, as PyTorch then computes."""
        return self.flops.get(precision, self.flops[SINGLE])


def find_gpu(device: Mapping[str, Any]) -> Gpu | None:
    """The GPU of a trace's device; None if its rates are unknown, or it is not from NVIDIA.

    Args:
        device: properties as the trace records them; `name`, and `numSms` if it is there.

    Example:
        >>> find_gpu({"name": "NVIDIA H200"}).multiprocessors
        132
    """
    rates = rates_of(str(device.get("name", "")))
    if rates is None or rates.get("major") is None:
        return None
    count = int(device.get("numSms") or rates["multiprocessors"])
    flops = {name: 1e3 * rates[name] for name in BYTES if rates[name]}
    return Gpu(rates["name"], count, float(rates["bandwidth"]), flops, rates["major"] >= _HOPPER)
