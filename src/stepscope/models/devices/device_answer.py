"""Predictions for other devices as data: `stepscope batch --on --json`, and the panel's tab.

The panel's types, `web/src/api/batch_types.ts`, are generated from these Structs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stepscope.models.devices.device_choice import CloudInstance

BasisName = Literal["kernels", "operations"]
Fit = Literal["yes", "no", "unsure", "unknown"]


class RangedValue(msgspec.Struct):
    """A prediction and the range in which it is expected."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> RangedValue:
        """The same in another unit."""
        return RangedValue(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self, amount: float) -> RangedValue:
        """An amount divided by it, such as a rate from a time."""
        return RangedValue(amount / self.value, amount / self.high, amount / self.low)


class DevicePrediction(msgspec.Struct):
    """A batch size on a device.

    Attributes:
        extrapolated: whether the batch size is outside those that were measured.
        ms: of a step.
        throughput: samples per second.
        bytes: peak memory; null if memory has no model.
        fits: whether that leaves room for the device's context; `unsure` if only a part of the
            range does.
        joules: energy per sample at the device's power limit, so at most; null if unknown.
        hours: device hours for the samples asked for.
        usd: their price on the instance; null without a price.
    """

    batch: int
    extrapolated: bool
    ms: RangedValue
    throughput: RangedValue
    bytes: RangedValue | None
    fits: Fit
    joules: RangedValue | None
    hours: RangedValue
    usd: RangedValue | None


class RankPrediction(msgspec.Struct):
    """Data-parallel training on several devices, each with the script's own batch size.

    Attributes:
        throughput: samples per second of all ranks.
        efficiency: throughput as a share of that many single devices.
        usd: price of the samples asked for, on as many devices; null without a price.
    """

    ranks: int
    ms: RangedValue
    throughput: RangedValue
    efficiency: float
    usd: RangedValue | None


class DeviceRow(msgspec.Struct):
    """A device and its predictions.

    Attributes:
        watts: power limit by its data sheet; null if unknown.
        usable_bytes: memory that an allocator may reserve.
        instance: the one whose price counts; null if no price is known.
        predictions: by batch size.
        ranks: by number of ranks; empty if not asked for.
        ranks_problem: why they cannot be predicted, else null.
    """

    name: str
    watts: float | None
    usable_bytes: int
    instance: CloudInstance | None
    predictions: list[DevicePrediction]
    ranks: list[RankPrediction]
    ranks_problem: str | None


class MeasuredEnergy(msgspec.Struct):
    """Energy on the device that was measured on, by its own counters.

    Attributes:
        joules: per sample.
        watts: mean power of the timed steps.
        counter: `NVML` for GPUs, `RAPL` for CPUs with all that runs on them.
    """

    batch: int
    joules: float
    watts: float
    counter: str


class DevicesAnswer(msgspec.Struct):
    """A measured step on other devices.

    Attributes:
        basis: `kernels` if the measured kernels were scaled, `operations` if their operations were
            counted on a CPU.
        sentence: the basis in words, with its error.
        known: share of the time whose operations are known.
        samples: number of samples that `hours` and `usd` are for.
        data_sheets_date: when the data sheets were read.
        bandwidth_gbps: of the links between ranks, Gbit/s; null without ranks.
        measured: energy where it was measured; null without counters.
    """

    basis: BasisName
    sentence: str
    known: float
    samples: int
    data_sheets_date: str
    bandwidth_gbps: float | None
    measured: MeasuredEnergy | None
    devices: list[DeviceRow]


class DevicesReply(msgspec.Struct):
    """What the panel's tab asks the editor for.

    Attributes:
        devices: null if they cannot be predicted.
        problem: why, else null.
    """

    devices: DevicesAnswer | None
    problem: str | None
