"""What stepscope makes of each capture; where its packages are missing, do this part elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting, Unavailable


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every capture that is there."""
    for path in sorted((setting.out / "captures").glob("*.stepscope")):
        yield path.name, partial(annotated, path)


def annotated(path: Path) -> Json:
    """Stage and module coverage of a capture."""
    try:
        from benchmarks.gpu.coverage import coverage
    except ImportError as error:
        raise Unavailable(f"opening a capture needs {error.name}") from error
    return coverage(path)
