"""The precision of a product, by its inputs and its kernel's name; peak rates and memory of devices.

The rates are those of data sheets, in `data/gpus.json`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from stepscope.base.arrays import IntArray
from stepscope.errors import BatchError, TraceError, name_hint
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

PRECISIONS = ("half", "tf32", "fp32")
_CODES = (*PRECISIONS, "")

# cuBLAS of CUDA 12 and later names input, accumulator and output: nvjet_hsh_…, nvjet_tst_…; the
# libraries of ROCm name the input after the indices: Cijk_Alik_Bljk_BBS_BH_….
_HALF = re.compile(
    r"bf16|f16|half|bfloat|hgemm|[hs]884|[hs]16816|h1688|nvjet_(sm\d+_)?[ht]s[a-z]_|^cijk_a[a-z]+_b[a-z]+_[hb]",
    re.IGNORECASE,
)
_NEITHER = re.compile(  # 8 or 64 bits
    r"(?<![a-z])([dz]gemm|f64)|d884|\bdouble\b|e4m3|e5m2|fp8|imma|int8|i8i32"
    r"|^cijk_a[a-z]+_b[a-z]+_(d|[bfi]8)",
    re.IGNORECASE,
)
# An `s` for single precision, or a type; SB and S_MT are AMD's.
_SINGLE = re.compile(r"sgem[mv]|scudnn|simt_s|_SB_|_S_MT|fp?32|float")
_TENSOR = re.compile(r"tf32|s1688|nvjet_(sm\d+_)?s[a-z]{2}_", re.IGNORECASE)


def precisions(kernels: Text, width: IntArray) -> Text:
    """`half`, `tf32`, `fp32` or null for each product.

    The operator's inputs take precedence over the kernel's name. 8-bit and 64-bit products are
    null, as their peak rates are not known.

    Args:
        width: bytes per element of the operands, shape (n,); 0 if unknown.
    """
    half, tf32, fp32, unknown = range(len(_CODES))
    named = kernels.compact().map(_by_name).recoded(_CODES).codes
    named = np.where(named < 0, unknown, named)
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


@lru_cache(maxsize=1 << 16)
def is_single(name: str) -> bool:
    """Whether a kernel's name indicates 32 bits, TF32 included."""
    return is_tf32(name) or (bool(_SINGLE.search(name)) and not is_half(name))


@lru_cache(maxsize=1 << 16)
def _by_name(name: str) -> str:
    if _NEITHER.search(name):
        return ""
    return "half" if is_half(name) else "tf32" if is_tf32(name) else "fp32"


_SMALLER = re.compile(r"\b(MIG|Laptop)\b", re.IGNORECASE)  # with less memory than its name says, too
_OF_OTHER_RATES = re.compile(r"\b(NVL|D|SXM-64GB)$", re.IGNORECASE)  # H200 NVL, RTX 4090 D, Leonardo's A100


def rates_of(name: str) -> dict[str, Any] | None:
    """Peak rates by a device's name, short or as in traces; None if unknown, as of a part of a device.

    Returns:
        TFLOPS in `fp32`, `tf32` and `half`, None if the device has no such rate; GB/s in
        `bandwidth`; GiB in `memory`; its power limit in `watts`, None if unknown; its short `name`.
    """
    known = (gpu for gpu in known_gpus() if gpu["name"].lower() == name.lower() or _is_in(gpu["match"], name))
    return None if _SMALLER.search(name) or _OF_OTHER_RATES.search(name) else next(known, None)


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
    return json.loads(files("stepscope.facts.roofline").joinpath("data/gpus.json").read_text("utf-8"))


def with_device(trace: Trace, name: str) -> Trace:
    """The trace with a device name, for files that do not name their device; raises TraceError if the file
    names its device, or the name is unknown."""
    recorded = [str(device["name"]) for device in trace.metadata.devices if device.get("name")]
    if any(re.search(r"\d", one) for one in recorded):  # `AMD GPU` names none
        raise TraceError(
            f"{trace.metadata.source} names its device, {recorded[0]}; only files that name none take one"
        )
    if (known := rates_of(name)) is None:
        hint = name_hint(name, [gpu["name"] for gpu in known_gpus()])
        raise TraceError(f"unknown device {name!r}; {hint}")
    device = {"name": known["match"], "computeMajor": known.get("major")}
    return trace.with_metadata(devices=(device,))


def _is_in(known: str, name: str) -> bool:
    """Whether a name contains another as whole words: GH200 is not H200, A1000 is not A100."""
    early = re.escape(known).replace("SXM4", "SXM4?")  # drivers of 2020 wrote A100-SXM-80GB
    return re.search(rf"(?<![A-Za-z0-9]){early}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


# -- memory of a device, by its name or as a plain size

_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kmgt])(i?)b?", re.IGNORECASE)
_STATED = re.compile(r"(?<![\w])(\d{1,9}) ?G(?:i?B)?\b", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_GIB = 1 << 30  # bytes
_MOST_TIMES = 2  # what a device's name says may be so many times what is listed: A100 80GB
_CONTEXT_BYTES = 700_000_000  # of a CUDA context with the libraries that PyTorch loads
_SYSTEM_SHARE = 0.1  # of main memory, for everything else that runs


@dataclass(frozen=True)
class Capacity:
    """A device to fit into."""

    name: str  # as asked for
    bytes: int  # its memory
    is_size: bool = False  # whether a plain size was asked for, not a device by its name

    @property
    def usable_bytes(self) -> int:
        """Bytes that an allocator may reserve: without the device's context."""
        return self.bytes - min(_CONTEXT_BYTES, self.bytes // 4)

    @property
    def limit_bytes(self) -> int:
        """The same; of a plain size all of it, as whoever gives one knows what is left."""
        return self.bytes if self.is_size else self.usable_bytes


def usable_bytes(device: Mapping[str, Any]) -> int | None:
    """Bytes that may be reserved on the device that was measured on; None if its memory is unknown."""
    total = int(device.get("memory_bytes") or 0)
    if not total:
        return None
    if device.get("type") == "cpu":
        return round((1 - _SYSTEM_SHARE) * total)
    return Capacity(str(device.get("name")), total).usable_bytes


def find_capacity(text: str) -> Capacity:
    """A size such as `24GB` or `24GiB`, or a device such as `A100` or `RTX 4090`.

    GB is 10^9 bytes, GiB is 2^30. A device's memory comes from its data sheet;
    `Capacity.usable_bytes` subtracts what the driver and the context take.

    Raises:
        BatchError: it is neither.
    """
    match = _SIZE.fullmatch(text.strip())
    if match and not text.lower().endswith("ti"):  # a 3080 Ti
        number, unit, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWER[unit.lower()])
        return Capacity(text, size, is_size=True)
    known = [(name, gib) for name, gib in device_memory_gib().items() if _mentions(name, text)]
    if known and not _SMALLER.search(text):
        _, gib = max(known, key=lambda entry: len(entry[0]))  # 3080 Ti, not 3080
        stated = _STATED.search(text)
        # A GH200 480GB has that much on its CPU.
        is_its_own = stated is not None and int(stated[1]) <= _MOST_TIMES * gib
        return Capacity(text, (int(stated[1]) if stated and is_its_own else gib) * _GIB)
    raise BatchError(
        f"expected a capacity such as 24GB or a known device such as A100, found {text!r}; give the capacity"
    )


def _mentions(name: str, text: str) -> bool:
    """Whether a text contains a device's name as whole words: A4000 is not A40, GH200 not H200."""
    words = r"[\s_-]*".join(map(re.escape, name.split()))
    before = "[0-9]" if name[0].isdigit() else "[a-z]"
    return re.search(rf"(?<!{before}){words}(?![0-9])", text, re.IGNORECASE) is not None
