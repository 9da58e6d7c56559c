"""The user's settings of the editor."""

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
        run_scripts: whether a script may be run: ask (before the first run), always or never.
        in_place: run scripts in the project itself instead of a scratch view of it.
    """

    measure_on_save: bool = True
    arguments: tuple[str, ...] = ()
    time_limit_s: float = 120.0
    hints: str = "inlay"
    run_scripts: str = "ask"
    in_place: bool = False


_NAMES = {
    "measureOnSave": "measure_on_save",
    "arguments": "arguments",
    "timeLimit": "time_limit_s",
    "hints": "hints",
    "runScripts": "run_scripts",
    "inPlace": "in_place",
}
_CHOICES = {"hints": ("inlay", "lens", "off"), "run_scripts": ("ask", "always", "never")}


def settings_of(values: Any) -> Settings:
    """Settings as an editor sends them; missing or invalid values keep their default."""
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
    if field in _CHOICES:
        return value in _CHOICES[field]
    return isinstance(value, tuple if field == "arguments" else bool)
