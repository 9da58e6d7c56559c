"""Which code is torch's or ours; torch is not imported for this."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_TORCH = getattr(find_spec("torch"), "origin", None)
_FILES = tuple(str(Path(file).parent) for file in (_TORCH, Path(__file__).parent) if file)


def is_internal(file: str) -> bool:
    """Whether code is torch's or ours."""
    return file.startswith(_FILES)
