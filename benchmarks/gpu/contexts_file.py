"""Reads a capture of contexts without stepscope, whose reader may not be installed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any


def read_contexts(path: Path) -> dict[str, Any]:
    """contexts.json of a capture."""
    with zipfile.ZipFile(path) as archive:
        content: dict[str, Any] = json.loads(archive.read("contexts.json"))
    return content
