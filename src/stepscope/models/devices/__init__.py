"""A measured step on other devices: time, fit, energy and cost."""

from stepscope.models.devices.device_answer import PriceTable, Target, parse_targets, read_prices
from stepscope.models.devices.projection import Wanted, project

__all__ = ["PriceTable", "Target", "Wanted", "parse_targets", "project", "read_prices"]
