"""Facts as JSON on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click


def echo_json(facts: Any) -> None:
    """Print facts as JSON that every reader takes: a number that is not finite is null."""
    click.echo(json.dumps(finite(facts), indent=1, allow_nan=False))


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, for which JSON has no word.

    Example:
        >>> finite({"speedup": float("inf"), "range": (1.0, float("nan"))})
        {'speedup': None, 'range': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
