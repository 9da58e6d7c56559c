"""What the work of a step comes to: operations, bytes, and what a device could do at best."""

from stepscope.roofline.formulas import Work, work_of
from stepscope.roofline.pieces import Pieces, work_of_pieces
from stepscope.roofline.precision import precisions
from stepscope.roofline.rates import known_gpus, rates_of
from stepscope.roofline.table import with_operations

__all__ = [
    "Pieces",
    "Work",
    "known_gpus",
    "precisions",
    "rates_of",
    "with_operations",
    "work_of",
    "work_of_pieces",
]
