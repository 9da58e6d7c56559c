"""Data sheets of devices, from `data/gpus.json`."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from stepscope.errors import TraceError
from stepscope.trace.trace import Trace


def rates_of(name: str) -> dict[str, Any] | None:
    """Peak rates by a device's name, short or as in traces; None if unknown.

    Returns:
        TFLOPS in `fp32`, `tf32` and `half`, None if the device has no such rate; GB/s in
        `bandwidth`; GiB in `memory`; its power limit in `watts`, None if unknown; its short `name`.
    """
    known = (
        gpu
        for gpu in known_gpus()
        if gpu["name"].lower() == name.lower() or _is_in(gpu["match"], name)
    )
    return next(known, None)


def known_gpus() -> tuple[dict[str, Any], ...]:
    """Every device of `data/gpus.json` with known rates."""
    return tuple(_data_sheets()["gpus"])


def device_memory_gib() -> dict[str, int]:
    """Memory by name, GiB, of all devices in `data/gpus.json`."""
    with_rates: dict[str, int] = {gpu["name"]: gpu["memory"] for gpu in known_gpus()}
    memory_only: dict[str, int] = _data_sheets()["memory_only"]
    return with_rates | memory_only


def data_sheets_date() -> str:
    """The day on which the data sheets were read."""
    return str(_data_sheets()["date"])


@cache
def _data_sheets() -> dict[str, Any]:
    text = files("stepscope.roofline").joinpath("data/gpus.json").read_text("utf-8")
    sheets: dict[str, Any] = json.loads(text)
    return sheets


def with_device(trace: Trace, name: str) -> Trace:
    """The trace with a device name, for files that do not name their device.

    Args:
        trace: any trace.
        name: name of a device in `data/gpus.json`.

    Raises:
        TraceError: if the file names its device, or the name is unknown.
    """
    recorded = [str(device["name"]) for device in trace.metadata.devices if device.get("name")]
    if recorded:
        raise TraceError(f"{trace.metadata.source} names its device, {recorded[0]}; "
                         "--device is for files that name none")  # fmt: skip
    known = rates_of(name)
    if known is None:
        names = ", ".join(gpu["name"] for gpu in known_gpus())
        raise TraceError(f"unknown device {name!r}; known devices: {names}")
    device = {"name": known["match"], "computeMajor": known.get("major")}
    return trace.with_metadata(devices=(device,))


def _is_in(known: str, name: str) -> bool:
    """Whether a name contains another as whole words: GH200 is not H200, A1000 is not A100."""
    words = rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])"
    return re.search(words, name, re.IGNORECASE) is not None
