"""Peak rates of devices, from `data/gpus.json`."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any


def rates_of(name: str) -> dict[str, Any] | None:
    """Peak rates by a device's name, short or as traces have it; None where they are not known.

    Returns:
        TFLOPS under `fp32`, `tf32` and `half`, None where the device has none; GB/s under
        `bandwidth`; its short `name`.
    """
    known = (
        gpu
        for gpu in known_gpus()
        if gpu["name"].lower() == name.lower() or _is_in(gpu["match"], name)
    )
    return next(known, None)


@cache
def known_gpus() -> tuple[dict[str, Any], ...]:
    """Every device of `data/gpus.json`."""
    text = files("stepscope.roofline").joinpath("data/gpus.json").read_text("utf-8")
    return tuple(json.loads(text)["gpus"])


def _is_in(known: str, name: str) -> bool:
    """Whether a name holds another as words of its own: a GH200 is no H200, an A1000 no A100."""
    words = rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])"
    return re.search(words, name, re.IGNORECASE) is not None
