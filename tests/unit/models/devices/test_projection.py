"""Predictions from measured kernels: the model of run time, scaled by simulated steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph
from stepscope.models.batch_size.entry_profile import Profile, make_profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.measurement import BatchPoint, Reserve
from stepscope.models.devices import Target, Wanted, parse_targets, read_prices
from stepscope.models.devices.device_answer import RangedValue
from stepscope.models.devices.projection import MeasuredKernels, Projection
from stepscope.models.kernels import find_gpu, product_ns
from stepscope.testing import drawn_trace

V100 = ({"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0},)
# One FP32 product of 1005 us; the CPU takes 20 us.
STEP = """
    main     |    0 40   | ProfilerStep#0
    main     |   10 20   | aten::mm | Input_Dims=[[4096,4096],[4096,4096]] Input_type=["float","float"]
    main     |   12 14   | cudaLaunchKernel   | corr=7
    stream 7 |   20 1025 | volta_sgemm_128x64 | corr=7
"""
TIMES = {8: 0.5, 16: 1.0, 32: 2.0}  # ms, without a constant
BYTES = 10**9


@cache
def graph() -> Graph:
    return build_graph(annotate(drawn_trace(STEP, devices=V100)))


def profile(**device: Any) -> Profile:
    points = [BatchPoint(batch, ms, BYTES * batch, watts=250.0) for batch, ms in TIMES.items()]
    return make_profile(points, device={"type": "cuda", **device})


def target(name: str) -> Target:
    return parse_targets(name, read_prices())[0]


@dataclass(frozen=True)
class Measured(Result):
    host_bytes: int = 0
    reserve: ClassVar[Reserve] = Reserve((16,), (1.02,))


def projection(wanted: Wanted, host_bytes: int = 0, **device: Any) -> Projection:
    measured = profile(**device)
    entry: Any = SimpleNamespace(batch=16)
    result = Measured(entry, measured, host_bytes=host_bytes)
    return Projection(result, MeasuredKernels(graph(), 16, measured), wanted)


def test_the_device_that_was_measured_on_takes_what_was_measured() -> None:
    basis = MeasuredKernels(graph(), 16, profile())
    for batch, ms in TIMES.items():
        assert basis.step_ms(target("V100"), batch).value == pytest.approx(ms, rel=1e-3)


def test_a_rate_has_an_end_where_the_range_of_the_time_has_none() -> None:
    assert RangedValue(2.0, 0.0, 4.0).inverse(8.0) == RangedValue(4.0, 2.0, 4000.0)
    assert RangedValue(2.0, 1.0, 4.0).inverse(8.0) == RangedValue(4.0, 2.0, 8.0)


def test_a_step_is_scaled_like_its_kernels() -> None:
    basis = MeasuredKernels(graph(), 16, profile())
    found = basis.step_ms(target("A100"), 16)
    v100, a100 = (find_gpu({"name": name}) for name in ("V100", "A100"))
    assert v100 is not None
    assert a100 is not None
    sizes = 4096, 4096, 4096
    plain = product_ns(*sizes, "fp32", v100)
    kernel, in_tf32 = (1005 * float(product_ns(*sizes, name, a100) / plain) for name in ("fp32", "tf32"))
    assert found.value == pytest.approx((20 + kernel) / 1025, rel=1e-3)
    # Of the 20 us before the kernel the CPU takes 12.
    slow, fast = (8 + 1.5 * 12 + 1.6 * kernel) / 1025, (8 + 12 / 1.5 + in_tf32 / 1.6) / 1025
    low, high = profile().predict(16)["ms_range"]
    assert (found.low, found.high) == pytest.approx((fast * low, slow * high), rel=1e-3)


def test_what_fits_leaves_room_and_says_where_it_is_not_sure() -> None:
    # An L4 has 24 GiB, of which 25 GB may be reserved; a sample takes 1 GB, and 0 to 7 % more.
    (row,) = projection(Wanted((16, 24, 32))).answer([target("L4")]).devices
    assert [one.fits for one in row.predictions] == ["yes", "unsure", "no"]
    (row,) = projection(Wanted((32,)), host_bytes=10**10).answer([target("L4")]).devices
    assert row.predictions[0].fits == "yes"  # what stays in host memory does not count


def test_energy_by_the_power_limit_and_by_the_counter() -> None:
    found = projection(Wanted((16,)), energy_counter="NVML").answer([target("A100")])
    (one,) = found.devices[0].predictions
    assert one.joules is not None
    assert one.joules.value == pytest.approx(400 * one.ms.value / 1e3 / 16)
    assert found.measured is not None
    assert (found.measured.counter, found.measured.watts) == ("NVML", 250)
    assert found.measured.joules == pytest.approx(250 * 1e-3 / 16)
    assert projection(Wanted((16,))).answer([target("A100")]).measured is None


def test_price_is_the_share_of_an_instance() -> None:
    found = projection(Wanted((16,), samples=16_000_000)).answer([target("p4d.24xlarge")])
    (one,) = found.devices[0].predictions
    assert one.usd is not None
    assert one.hours.value == pytest.approx(one.ms.value * 1e6 / 3.6e6)
    assert one.usd.value == pytest.approx(one.hours.value * 21.957642 / 8)


def test_ranks_without_known_gradients_say_why() -> None:
    (row,) = projection(Wanted((16,), ranks=4)).answer([target("A100")]).devices
    assert row.ranks == []
    assert "gradients" in str(row.ranks_problem)


def test_by_default_sizes_are_near_those_that_were_measured() -> None:
    (row,) = projection(Wanted()).answer([target("A100")]).devices
    assert [one.batch for one in row.predictions] == [8, 16, 32]
