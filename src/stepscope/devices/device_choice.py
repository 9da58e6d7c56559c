"""The devices and cloud instances that a user asks for."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.devices.price_table import PriceTable, RentedInstance
from stepscope.errors import BatchError
from stepscope.roofline import known_gpus, rates_of
from stepscope.roofline.device_memory import Capacity
from stepscope.whatif.parts.other_device import Rates

_GIB = 1 << 30


@dataclass(frozen=True)
class Target:
    """A device to predict, and the instance that has it.

    Attributes:
        rates: its data sheet, as from `rates_of`.
        instance: the one asked for, else the one with the lowest price per device; None if no
            price is known.
    """

    rates: Rates
    instance: RentedInstance | None

    @property
    def name(self) -> str:
        """Short name of the device."""
        return str(self.rates["name"])

    @property
    def watts(self) -> float | None:
        """Its power limit, None if unknown."""
        watts: float | None = self.rates["watts"]
        return watts

    @property
    def usable_bytes(self) -> int:
        """Bytes for tensors: without the device's context and fragmentation."""
        return Capacity(self.name, self.rates["memory"] * _GIB).usable_bytes


def parse_targets(text: str, prices: PriceTable) -> tuple[Target, ...]:
    """The devices of a list such as `H100,A100,g6.xlarge`.

    Args:
        text: names of devices with known data sheets, or of instances in the price table.
        prices: the price table.

    Raises:
        BatchError: if a name is neither.

    Example:
        >>> from stepscope.devices.price_table import read_prices
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
        instances = ", ".join(one.name for one in prices.instances)
        raise BatchError(
            f"unknown device or instance {name!r}; devices: {devices}; instances: {instances}"
        )
    return Target(rates, instance or prices.cheapest(str(rates["name"])))
