"""The page about batch sizes, as one HTML file."""

from __future__ import annotations

from stepscope.faces.page.bundle import data_element, page_in_one
from stepscope.models.batch_size.batch_panel import batch_profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.devices.device_answer import DevicesAnswer

ELEMENT = "stepscope-batch"
DEVICES_ELEMENT = "stepscope-devices"


def batch_page(result: Result, capacity: float | None = None, devices: DevicesAnswer | None = None) -> str:
    """The page about batch sizes with its data, as HTML that needs nothing else."""
    data = data_element(ELEMENT, batch_profile(result, capacity))
    if devices is not None:
        data += data_element(DEVICES_ELEMENT, devices)
    return page_in_one(data, "batch.html")
