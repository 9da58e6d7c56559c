"""The devices and cloud instances that a user asks for, and their prices."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.base.typed_data import decode
from stepscope.errors import BatchError
from stepscope.facts.roofline import known_gpus, rates_of
from stepscope.facts.roofline.rates import Capacity
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
        """The share of one device."""
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
        table = decode((Path(path) if path else packaged).read_bytes(), PriceTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatchError(f"cannot read prices from {path}: {error}") from error
    for rented in table.instances:
        if (rates := rates_of(rented.device)) is None or rates["name"] != rented.device:
            where = f"{path or 'prices.json'}: {rented.name}"
            raise BatchError(f"{where} has the unknown device {rented.device!r}")
    return table


_GIB = 1 << 30  # bytes; data sheets state memory in GiB


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

    Example:
        >>> [target.name for target in parse_targets("a100,g6.xlarge", read_prices())]
        ['A100', 'L4']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BatchError("expected devices such as H100,A100,L4, found none")
    return tuple(_target(name, prices) for name in names)


def _target(name: str, prices: PriceTable) -> Target:
    instance = prices.named(name)
    rates = rates_of(instance.device if instance else name)
    if rates is None:
        devices = ", ".join(gpu["name"] for gpu in known_gpus())
        instances = ", ".join(rented.name for rented in prices.instances)
        raise BatchError(f"unknown device or instance {name!r}; devices: {devices}; instances: {instances}")
    return Target(rates, instance or prices.cheapest(str(rates["name"])))
