"""The work of a step: operations, bytes, and peak rates of devices."""

from stepscope.facts.roofline.formulas import work_of
from stepscope.facts.roofline.operator_work import WorkPieces, with_operations, work_of_pieces
from stepscope.facts.roofline.rates import (
    data_sheets_date,
    device_memory_gib,
    known_gpus,
    precisions,
    rates_of,
    with_device,
)

__all__ = [
    "WorkPieces",
    "data_sheets_date",
    "device_memory_gib",
    "known_gpus",
    "precisions",
    "rates_of",
    "with_device",
    "with_operations",
    "work_of",
    "work_of_pieces",
]
