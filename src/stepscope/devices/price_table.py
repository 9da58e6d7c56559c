"""Prices of cloud instances, from `data/prices.json` or a file of the user's."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.errors import BatchError
from stepscope.roofline import rates_of
from stepscope.typed_data import decode


class RentedInstance(msgspec.Struct, frozen=True):
    """A cloud instance and its price on demand.

    Attributes:
        name: as the provider calls it.
        device: a device of `roofline/data/gpus.json`.
        count: number of these devices.
        usd_per_hour: for the whole instance.
        date: when the price was checked.
        source: where.
    """

    name: str
    device: str
    usd_per_hour: Annotated[float, msgspec.Meta(gt=0)]
    date: str
    source: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
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

    instances: tuple[RentedInstance, ...]
    about: str = ""

    def named(self, name: str) -> RentedInstance | None:
        """The instance of a name, in any case; None if there is none."""
        same = (one for one in self.instances if one.name.lower() == name.lower())
        return next(same, None)

    def cheapest(self, device: str) -> RentedInstance | None:
        """The instance with the lowest price per device; None if no price is known."""
        having = [one for one in self.instances if one.device == device]
        return min(having, key=lambda one: one.usd_per_device_hour, default=None)


def read_prices(path: str | None = None) -> PriceTable:
    """The price table of the package, or of a file in the same format.

    Args:
        path: a JSON file with `instances`.

    Raises:
        BatchError: if the file cannot be read, has the wrong shape, or names an unknown device.
    """
    try:
        data = Path(path).read_bytes() if path else _packaged()
        table = decode(data, PriceTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatchError(f"cannot read prices from {path}: {error}") from error
    for one in table.instances:
        if (known := rates_of(one.device)) is None or known["name"] != one.device:
            raise BatchError(
                f"{path or 'prices.json'}: {one.name} has the unknown device {one.device!r}"
            )
    return table


def _packaged() -> bytes:
    return files("stepscope.devices").joinpath("data/prices.json").read_bytes()
