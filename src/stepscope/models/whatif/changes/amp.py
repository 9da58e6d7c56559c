"""`amp`: automatic mixed precision, on a CPU by a calibration."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError
from stepscope.facts.roofline.rates import is_single, rates_of
from stepscope.graph import Graph, scale
from stepscope.models.calibration.calibration import Calibration, Operator, ScriptOperators, between
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, needed_calibration, on_cpu
from stepscope.models.whatif.parts.autocast_flow import Effect, data_table, effects_of, policy_of
from stepscope.models.whatif.parts.gpu_precision import autocast_on_gpu, calibrated_time, precise_gpu
from stepscope.models.whatif.parts.kernel_times import (
    bound_by_memory,
    compute_bound,
    device_of,
    in_half,
    in_tf32,
)
from stepscope.models.whatif.parts.layers import first_of
from stepscope.models.whatif.parts.memory_flow import autocasted
from stepscope.models.whatif.parts.step_work import step_operators
from stepscope.trace.schema import PASS_STAGES

_MEMORY = ("normalization", "elementwise", "reduction", "embedding", "other")
_AMD = re.compile(r"AMD|Instinct|Radeon")
_WAVE = 64  # threads of a warp on AMD's GPUs for computing; NVIDIA's have 32


def amp(graph: Graph, dtype: str = "bfloat16", estimate: str = "typical") -> Graph:
    """Automatic mixed precision: forward and backward run in 16 bits.

    On a GPU whose products are known, each operator does what autocast makes of it: products, convolutions,
    attention and recurrent layers take what their sizes take in 16 bits, other kernels move fewer bytes or
    stay in FP32, and casts cost the device and the CPU. Without shapes, kernels that still run in 32 bits get
    the speedups in `whatif/data/amp.json` for the device's generation.

    Args:
        dtype: `bfloat16` or `float16`.
        estimate: `low`, `typical` or `high`: how much kernels gain; on a CPU, operators that
            a calibration could not measure.

    Source: DAYDREAM section 5.1, algorithm 3, for the speedups by generation.
    """
    if estimate not in ("low", "typical", "high"):
        raise ChangeError(f"amp: expected estimate=low, typical or high; found {estimate!r}")
    if dtype not in ("bfloat16", "float16"):
        raise ChangeError(f"amp: expected dtype=bfloat16 or float16; found {dtype!r}")
    if on_cpu(graph):
        if dtype != "bfloat16":
            raise ChangeError("amp: on a CPU the calibration is of bfloat16, so dtype=float16 is not known")
        return _amp_on_cpu(graph, estimate)
    gpu = precise_gpu(graph)
    if gpu is not None:
        return autocast_on_gpu(graph, gpu, estimate, bfloat=dtype == "bfloat16")
    factors = _factors(graph)
    compute, tensor, memory = graph.once(_kernels)
    for tasks, bound in ((compute, "compute"), (tensor, "tensor"), (memory, "memory")):
        graph = scale(graph, tasks, 1 / factors[bound][estimate])
    return graph


def _kernels(graph: Graph) -> tuple[Mask, Mask, Mask]:
    """Compute-bound kernels in FP32, compute-bound kernels in TF32, memory-bound kernels."""
    eligible = graph.tasks.text("stage").mask(*PASS_STAGES) & ~in_half(graph)
    products = eligible & compute_bound(graph)
    if not products.any():
        raise ChangeError("amp: no matrix product or convolution runs in 32 bits")
    if not (products := products & graph.tasks.text("name").where(is_single)).any():
        raise ChangeError("amp: nothing shows that products run in 32 bits; record their shapes")
    moves, tf32 = bound_by_memory(graph), in_tf32(graph)
    others = eligible & graph.tasks.text("kind").mask(*_MEMORY)
    return products & ~moves & ~tf32, products & ~moves & tf32, (products | others) & moves


def _factors(graph: Graph) -> dict[str, Any]:
    device = device_of(graph)
    name = str(device.get("name", ""))
    major = device.get("computeMajor") or (rates_of(name) or {}).get("major")  # XLA's traces have the name
    if not graph.on_device.any() or (major is None and not name):
        raise ChangeError("amp: the trace does not name its device; name it with the option device")
    rows = (row for row in data_table("amp.json")["generations"] if row["major"] == major)
    factors: dict[str, Any] | None = next(rows, None)
    is_amd = _AMD.search(name) or device.get("warpSize") == _WAVE
    if is_amd or factors is None:
        raise ChangeError(f"amp: no speedups are known for {name or ('AMD' if is_amd else major)}")
    return factors


_LEAST_SHARE = 0.5  # of the time in 16 bits that is calibrated; of less, most would be a guess
_LOSS, _GAIN = 2.0, 0.5  # of an operator that was not measured: 16 bits are half of the bytes
_NAMED = 3  # operators in a sentence


def _amp_on_cpu(graph: Graph, estimate: str) -> Graph:
    """Scale operators by their calibrated ratio of 16-bit to 32-bit time, and add casts.

    This may well be slower: a CPU without 16-bit instructions loses. An operator that could not be
    measured keeps its time; in the low and high estimate it loses or gains most of all.
    """
    calibration = needed_calibration(graph, "amp", "casts")
    autocast = _autocast(graph, calibration)
    if not autocast.half.any():
        raise ChangeError(
            "amp: these steps have no autocast operators with recorded shapes; "
            "record them with `stepscope run`"
        )
    if autocast.known_share(graph) < _LEAST_SHARE:
        raise ChangeError(
            "amp: the calibration lacks most of these operators; run `stepscope "
            "calibrate FILE` on the machine that recorded the trace"
        )
    casts = np.array([_casts_ns(calibration, effect) for effect in autocast.effects])
    ratio = np.where(autocast.half, autocast.estimated(estimate), 1.0)
    return _retimed(graph, autocast.operators, ratio, casts)


def _autocast_assumptions(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from, and the share of the work that they cover."""
    calibration = needed_calibration(graph, "amp", "casts")
    autocast = _autocast(graph, calibration)
    share, others = autocast.known_share(graph), autocast.unmeasured(graph)
    which = f" ({', '.join(others)})" if others else ""
    return (
        f"operators gain in the step what they gained alone ({calibration})",
        f"operators with {share:.0%} of the time spent in 16 bits were measured; "
        f"the others{which} keep their time",
        "values in 16 bits are tracked by their sizes",
    )


@dataclass(frozen=True, eq=False)
class _CpuAutocast:
    """What autocast would do to the operators of a graph's steps."""

    operators: ScriptOperators
    effects: list[Effect]
    ratio: Floats  # time in 16 bits over time in 32; NaN if not measured

    @property
    def half(self) -> Mask:
        """Operators that would compute in 16 bits."""
        return np.array([effect.half for effect in self.effects], np.bool_)

    def known_share(self, graph: Graph) -> float:
        """The share of the time in 16 bits that the calibration covers."""
        length = graph.trace.events["duration_ns"][self.operators.rows]
        total = float(length[self.half].sum())
        return float(length[self.half & np.isfinite(self.ratio)].sum()) / total if total else 1.0

    def estimated(self, estimate: str) -> Floats:
        """The ratio of each operator; of those that were not measured, by what others have."""
        measured = self.ratio[self.half & np.isfinite(self.ratio)]
        most, least = max(_LOSS, *measured), min(_GAIN, *measured)
        return np.where(np.isfinite(self.ratio), self.ratio, {"low": most, "high": least}.get(estimate, 1.0))

    def unmeasured(self, graph: Graph) -> list[str]:
        """The names of operators that were not measured, those with the longest time first."""
        names, length = graph.trace.events.text("name"), graph.trace.events["duration_ns"]
        rows = self.operators.rows[self.half & ~np.isfinite(self.ratio)]
        spent = np.bincount(names.codes[rows], length[rows], len(names.values))
        longest = np.argsort(-spent, kind="stable")[:_NAMED]
        return [names.values[name] for name in longest.tolist() if spent[name]]


def _autocast(graph: Graph, calibration: Calibration) -> _CpuAutocast:
    operators = step_operators(graph)
    ratio = np.array([_ratio(calibration, call) for call in operators.calls], np.float64)
    return _CpuAutocast(operators, effects_of(graph, operators, policy_of("cpu")), ratio)


def _ratio(calibration: Calibration, call: Operator | None) -> float:
    if call is None or not call.floats:
        return float("nan")
    single, half = calibration.operators.get(call.signature, (None, None))
    return half / single if single and half else float("nan")


def _casts_ns(calibration: Calibration, effect: Effect) -> float:
    sides = ((1, effect.down), (2, effect.up))
    return sum(between(calibration.casts, size, column) for column, sizes in sides for size in sizes)


def _retimed(graph: Graph, operators: ScriptOperators, ratio: Floats, added_ns: Floats) -> Graph:
    """Scale the tasks of each operator by its ratio, and add its casts to the first of them."""
    place = np.append(operators.around, -1)[graph.tasks["event"]]
    length = graph.tasks["duration_ns"] * np.append(ratio, 1.0)[place]
    first = first_of(place, np.flatnonzero(place >= 0), np.arange(len(ratio)))
    length[first[first >= 0]] += added_ns[first >= 0]
    return graph.with_tasks(duration_ns=np.rint(length))


CHANGE = Change(
    amp,
    group="Compute",
    basis="sizes of products, and measurements of others on GPUs; without shapes published speedups",
    assumptions=(
        "products run as fast as products of their sizes on this kind of GPU",
        "values in 16 bits are tracked by their sizes; the optimizer stays in 32 bits",
    ),
    evidence=calibrated_time,
    low={"estimate": "low"},
    high={"estimate": "high"},
    error=0.13,
    error_source="DAYDREAM 6.2",
    on_cpu=CpuPrediction("operators timed on this machine", _autocast_assumptions),
    application=Application(
        "`torch.autocast` to bfloat16 around each outermost module call: the model's, and losses "
        "that are modules"
    ),
    memory=autocasted,
    memory_error=0.02,
)
