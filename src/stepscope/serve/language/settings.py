"""What a user chose in their editor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings of the language server; an editor sends them under `stepscope`.

    Attributes:
        measure_on_save: measure a file again when it is saved.
        arguments: of the training script.
        time_limit_s: after which measuring is given up.
        hints: inlay, lens or off.
    """

    measure_on_save: bool = True
    arguments: tuple[str, ...] = ()
    time_limit_s: float = 120.0
    hints: str = "inlay"


_NAMES = {
    "measureOnSave": "measure_on_save",
    "arguments": "arguments",
    "timeLimit": "time_limit_s",
    "hints": "hints",
}
_HINTS = ("inlay", "lens", "off")


def settings_of(values: Any) -> Settings:
    """Settings as an editor sends them; what is missing or makes no sense keeps its default."""
    if isinstance(values, Mapping) and isinstance(values.get("stepscope"), Mapping):
        values = values["stepscope"]
    if not isinstance(values, Mapping):
        return Settings()
    sent: dict[str, Any] = {field: values.get(name) for name, field in _NAMES.items()}
    if isinstance(sent["arguments"], list | tuple):
        sent["arguments"] = tuple(map(str, sent["arguments"]))
    return Settings(**{field: value for field, value in sent.items() if _makes_sense(field, value)})


def _makes_sense(field: str, value: Any) -> bool:
    if field == "time_limit_s":
        return type(value) in (int, float) and math.isfinite(value) and value > 0
    if field == "hints":
        return value in _HINTS
    return isinstance(value, bool if field == "measure_on_save" else tuple)
