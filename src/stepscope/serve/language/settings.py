"""What a user chose in their editor."""

from __future__ import annotations

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
    "measureOnSave": ("measure_on_save", bool),
    "arguments": ("arguments", tuple),
    "timeLimit": ("time_limit_s", float),
    "hints": ("hints", str),
}


def settings_of(values: Any) -> Settings:
    """Settings as an editor sends them; what is missing or makes no sense keeps its default."""
    if isinstance(values, Mapping) and isinstance(values.get("stepscope"), Mapping):
        values = values["stepscope"]
    chosen: dict[str, Any] = {}
    for name, (field, kind) in _NAMES.items() if isinstance(values, Mapping) else ():
        try:
            chosen[field] = kind(values[name])
        except (KeyError, TypeError, ValueError):
            continue
    return Settings(**chosen)
