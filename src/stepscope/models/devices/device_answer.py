"""The devices and cloud instances that a user asks for, and predictions for them as data: `stepscope
batch --on --json`, and the panel's tab.

The panel's types, `web/src/api/batch_types.ts`, are generated from these Structs.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Literal

import msgspec

from stepscope.base.input_files import content_of
from stepscope.base.typed_data import decode
from stepscope.errors import BatchError, name_hint
from stepscope.facts.roofline.rates import Capacity, known_gpus, rates_of
from stepscope.models.batch_size.entry_result import Fit
from stepscope.models.whatif.parts.kernel_times import Rates


class CloudInstance(msgspec.Struct, frozen=True):
    """A cloud instance and its price on demand."""

    name: str
    device: str  # a device of `roofline/data/gpus.json`
    usd_per_hour: Annotated[float, msgspec.Meta(gt=0)]  # of the whole instance; a device costs its share
    date: str  # when the price was checked
    source: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of devices
    provider: str = ""
    region: str = ""

    @property
    def usd_per_device_hour(self) -> float:
        return self.usd_per_hour / self.count


class PriceTable(msgspec.Struct, frozen=True):
    """Instances with prices.

    Example:
        >>> read_prices().cheapest("L4").name
        'g6.xlarge'
    """

    instances: tuple[CloudInstance, ...]
    about: str = ""

    def named(self, name: str) -> CloudInstance | None:
        """The instance of a name, in any case; None if there is none."""
        return next((rented for rented in self.instances if rented.name.lower() == name.lower()), None)

    def cheapest(self, device: str) -> CloudInstance | None:
        """The instance with the lowest price per device; None if no price is known."""
        having = (rented for rented in self.instances if rented.device == device)
        return min(having, key=lambda rented: rented.usd_per_device_hour, default=None)


def read_prices(path: str | None = None) -> PriceTable:
    """The price table of the package, or of a file in the same format; raises BatchError if the file
    cannot be read, has the wrong shape, or names an unknown device."""
    try:
        packaged = files("stepscope.models.devices").joinpath("data/prices.json")
        table = decode(content_of(path) if path else packaged.read_bytes(), PriceTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatchError(f"cannot read prices from {path}: {error}") from error
    for rented in table.instances:
        if (rates := rates_of(rented.device)) is None or rates["name"] != rented.device:
            where = f"{path or 'prices.json'}: {rented.name}"
            raise BatchError(f"{where} has the unknown device {rented.device!r}")
    return table


_GIB = 1 << 30  # bytes; data sheets state memory in GiB
_MOST_TIMES = 1000  # the value, of an inverse: the range of a noisy time begins at 0; chosen: it can be drawn


@dataclass(frozen=True)
class Target:
    """A device to predict, and the instance that has it."""

    rates: Rates
    # the one asked for, else the one with the lowest price per device; None if no price is known
    instance: CloudInstance | None

    @property
    def name(self) -> str:
        """Short name of the device."""
        return str(self.rates["name"])

    @property
    def watts(self) -> float | None:
        """Its power limit, None if unknown."""
        return self.rates["watts"]

    @property
    def usable_bytes(self) -> int:
        """Bytes that an allocator may reserve: without the device's context."""
        return Capacity(self.name, self.rates["memory"] * _GIB).usable_bytes


def parse_targets(text: str, prices: PriceTable) -> tuple[Target, ...]:
    """The devices of a list such as `H100,A100,g6.xlarge`.

    Args:
        text: names of devices with known data sheets, or of instances in the price table.

    Raises:
        BatchError: if a name is neither.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BatchError("expected devices such as H100,A100,L4, found none")
    return tuple(_target(name, prices) for name in names)


def _target(name: str, prices: PriceTable) -> Target:
    instance = prices.named(name)
    rates = rates_of(instance.device if instance else name)
    if rates is None:
        devices = [gpu["name"] for gpu in known_gpus()]
        hint = name_hint(name, devices + [rented.name for rented in prices.instances])
        raise BatchError(f"unknown device or instance {name!r}; {hint}")
    return Target(rates, instance or prices.cheapest(str(rates["name"])))


BasisName = Literal["kernels", "operations"]


class RangedValue(msgspec.Struct):
    """A prediction and the range in which it is expected."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "RangedValue":
        """The same in another unit."""
        return RangedValue(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self, amount: float) -> "RangedValue":
        """An amount divided by it, such as a rate from a time."""
        low = self.low or self.value / _MOST_TIMES
        return RangedValue(amount / self.value, amount / self.high, amount / low)


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

    # `kernels` if the measured kernels were scaled, `operations` if their operations were counted on a CPU
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
