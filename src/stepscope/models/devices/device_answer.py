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
    """A batch size on a device."""

    batch: int
    extrapolated: bool  # whether the batch size is outside those that were measured
    ms: RangedValue  # of a step
    throughput: RangedValue  # samples per second
    bytes: RangedValue | None  # peak memory; null if memory has no model
    fits: Fit  # whether that leaves room for the device's context; `unsure` if only a part of the range does
    joules: RangedValue | None  # energy per sample at the device's power limit, so at most; null if unknown
    hours: RangedValue  # device hours for the samples asked for
    usd: RangedValue | None  # their price on the instance; null without a price


class RankPrediction(msgspec.Struct):
    """Data-parallel training on several devices, each with the script's own batch size."""

    ranks: int
    ms: RangedValue
    throughput: RangedValue  # samples per second of all ranks
    efficiency: float  # throughput as a share of that many single devices
    usd: RangedValue | None  # price of the samples asked for, on as many devices; null without a price


class DeviceRow(msgspec.Struct):
    """A device and its predictions."""

    name: str
    watts: float | None  # power limit by its data sheet; null if unknown
    usable_bytes: int  # memory that an allocator may reserve
    instance: CloudInstance | None  # the one whose price counts; null if no price is known
    predictions: list[DevicePrediction]  # by batch size
    ranks: list[RankPrediction]  # by number of ranks; empty if not asked for
    ranks_problem: str | None  # why they cannot be predicted, else null


class MeasuredEnergy(msgspec.Struct):
    """Energy on the device that was measured on, by its own counters."""

    batch: int
    joules: float  # per sample
    watts: float  # mean power of the timed steps
    counter: str  # `NVML` for GPUs, `RAPL` for CPUs with all that runs on them


class DevicesAnswer(msgspec.Struct):
    """A measured step on other devices."""

    # `kernels` if the measured kernels were scaled, `operations` if their operations were counted on a
    # CPU
    basis: BasisName
    sentence: str  # the basis in words, with its error
    known: float  # share of the time whose operations are known
    samples: int  # number of samples that `hours` and `usd` are for
    data_sheets_date: str  # when the data sheets were read
    bandwidth_gbps: float | None  # of the links between ranks, Gbit/s; null without ranks
    measured: MeasuredEnergy | None  # energy where it was measured; null without counters
    devices: list[DeviceRow]


class DevicesReply(msgspec.Struct):
    """What the panel's tab asks the editor for."""

    devices: DevicesAnswer | None  # null if they cannot be predicted
    problem: str | None  # why, else null
