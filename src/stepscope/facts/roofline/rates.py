"""The precision of a product, by its inputs and its kernel's name, and peak rates of devices.

The rates are those of data sheets, in `data/gpus.json`."""

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from stepscope.base.arrays import IntArray
from stepscope.errors import TraceError
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

PRECISIONS = ("half", "tf32", "fp32")
_CODES = (*PRECISIONS, "")

# cuBLAS of CUDA 12 and later names input, accumulator and output: nvjet_hsh_…, nvjet_tst_….
_HALF = re.compile(
    r"bf16|f16|half|bfloat|hgemm|[hs]884|[hs]16816|h1688|nvjet_(sm\d+_)?[ht]s[a-z]_", re.IGNORECASE
)
_TENSOR = re.compile(r"tf32|s1688|nvjet_(sm\d+_)?s[a-z]{2}_", re.IGNORECASE)


def precisions(kernels: Text, width: IntArray) -> Text:
    """`half`, `tf32`, `fp32` or null for each product.

    The operator's inputs take precedence over the kernel's name. 8-bit and 64-bit products are
    null, as their peak rates are not known.

    Args:
        width: bytes per element of the operands, shape (n,); 0 if unknown.
    """
    half, tf32, fp32, unknown = range(len(_CODES))
    by_name = [_CODES.index(_by_name(name)) for name in kernels.values]
    named = np.array([*by_name, unknown], np.int8)[kernels.codes]
    given = np.where(named == tf32, tf32, fp32)
    codes = np.select([width == 2, width == 4, width > 0], [half, given, unknown], named)
    return Text(codes.astype(np.int8), _CODES)


@lru_cache(maxsize=1 << 16)
def is_half(name: str) -> bool:
    """Whether a kernel's name indicates 16 bits."""
    return bool(_HALF.search(name))


@lru_cache(maxsize=1 << 16)
def is_tf32(name: str) -> bool:
    """Whether a kernel's name indicates TF32."""
    return bool(_TENSOR.search(name)) and not is_half(name)


def _by_name(name: str) -> str:
    return "half" if is_half(name) else "tf32" if is_tf32(name) else "fp32"


def rates_of(name: str) -> dict[str, Any] | None:
    """Peak rates by a device's name, short or as in traces; None if unknown.

    Returns:
        TFLOPS in `fp32`, `tf32` and `half`, None if the device has no such rate; GB/s in
        `bandwidth`; GiB in `memory`; its power limit in `watts`, None if unknown; its short `name`.
    """
    known = (gpu for gpu in known_gpus() if gpu["name"].lower() == name.lower() or _is_in(gpu["match"], name))
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
    text = files("stepscope.facts.roofline").joinpath("data/gpus.json").read_text("utf-8")
    return json.loads(text)


def with_device(trace: Trace, name: str) -> Trace:
    """The trace with a device name, for files that do not name their device.

    Raises:
        TraceError: if the file names its device, or the name is unknown.
    """
    recorded = [str(device["name"]) for device in trace.metadata.devices if device.get("name")]
    if recorded:
        raise TraceError(
            f"{trace.metadata.source} names its device, {recorded[0]}; --device is for files that name none"
        )
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
