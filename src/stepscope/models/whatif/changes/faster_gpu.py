"""`faster_gpu`: the same step on another device."""

from contextlib import suppress

import numpy as np

from stepscope.errors import ChangeError
from stepscope.facts.roofline import known_gpus, rates_of
from stepscope.graph import Graph, scale
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.kernel_times import SCALING_ERROR, Rates, device_of, scaled_kernels_ns
from stepscope.models.whatif.parts.other_gpu import kernels_on_ns

_PREFERRED = "H100"
_FASTER = 0.99  # of the kernels' time; chosen: a device that takes less counts as faster
_LONGER = {"typical": 1.0, "low": SCALING_ERROR, "high": 1 / SCALING_ERROR}


def faster_gpu(graph: Graph, to: str = "", estimate: str = "typical") -> Graph:
    """Kernels run on the device TO, by the sizes of products and the peak rates of both devices.

    Between two NVIDIA GPUs products of recorded sizes take as much longer or shorter as products of
    these sizes do. Of every other kernel 5 us stay, and the rest changes by the rooflines of both
    devices if an operator's shapes were recorded; else by the ratio of compute (in its precision)
    or memory bandwidth, depending on the kind of kernel. Peak rates and their sources:
    `roofline/data/gpus.json`.

    Args:
        to: a device of `data/gpus.json`; by default H100, or the next one that is faster.
        estimate: `typical`; `low` or `high` if kernels take 1.6 times as long or as short, which is
            the largest error that was measured.
    """
    if estimate not in _LONGER:
        raise ChangeError(f"faster_gpu: expected estimate=low, typical or high, found {estimate!r}")
    if not graph.on_device.any():
        raise ChangeError("faster_gpu: these steps have no device work")
    old = _rates(str(device_of(graph).get("name", "")))
    time = kernels_on_ns(graph, old, _rates(to) if to else _faster(graph, old))
    kernels = ~np.isnan(time)
    before = np.maximum(graph.tasks["duration_ns"][kernels], 1)
    return scale(graph, kernels, time[kernels] * _LONGER[estimate] / before)


def choose_faster(graph: Graph) -> dict[str, str]:
    """The device that the change takes by default, as its parameter `to`."""
    if not graph.on_device.any():
        return {}
    return {"to": str(_faster(graph, _rates(str(device_of(graph).get("name", ""))))["name"])}


def _faster(graph: Graph, old: Rates) -> Rates:
    """The first known device, H100 before others, on which these kernels take less time."""
    time = graph.tasks["duration_ns"]
    for new in sorted(known_gpus(), key=lambda gpu: gpu["name"] != _PREFERRED):
        with suppress(ChangeError):  # a device without one of the rates
            after = scaled_kernels_ns(graph, old, new)
            kernels = ~np.isnan(after)
            if after[kernels].sum() < _FASTER * time[kernels].sum():
                return new
    raise ChangeError(f"faster_gpu: no known device runs these kernels faster than {old['name']}")


def _rates(name: str) -> Rates:
    if not name:
        raise ChangeError("faster_gpu: the trace does not name its device; name it with --device")
    found = rates_of(name)
    if found is None:
        known = ", ".join(gpu["name"] for gpu in known_gpus())
        raise ChangeError(f"faster_gpu: there are no rates for {name!r}; known devices: {known}")
    return found


CHANGE = Change(
    faster_gpu,
    group="Compute",
    basis="the data sheets of both devices, and measurements of others on GPUs",
    assumptions=(
        "kernels gain what the peak rates of both devices suggest; CPU times do not change",
        "copies and collectives take as long as they did",
    ),
    low={"estimate": "low"},
    high={"estimate": "high"},
    choose=choose_faster,
)
