"""Answers as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """JSON in UTF-8; what is not a number is null."""
    return msgspec.json.encode(value)
