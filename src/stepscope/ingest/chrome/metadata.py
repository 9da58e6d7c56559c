"""Metadata of a trace file: the top-level values other than its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.ingest.warning_log import WarningLog
from stepscope.trace.trace import Metadata

MOST_RANKS = 1 << 24  # no job has more: a higher number is not a rank
_ELSEWHERE = ("deviceProperties",)
_UNREAD = ("samples", "stackFrames", "systemTraceEvents", "controllerTraceDataKey")


def metadata_of(properties: Mapping[str, Any], log: WarningLog) -> Metadata:
    """Metadata from the top level of a trace file; `log` receives what is skipped."""
    unread = {key: _size(properties[key]) for key in _UNREAD if key in properties}
    found = ", ".join(f"{key} ({size})" for key, size in unread.items() if size)
    log("unread_section", f"skipped parts of the file: {found}", sum(unread.values()))
    info = properties.get("distributedInfo")
    info = info if isinstance(info, Mapping) else {}
    devices = properties.get("deviceProperties")
    devices = devices if isinstance(devices, list) else []
    return Metadata(
        framework="pytorch" if "schemaVersion" in properties else "",
        framework_version=_text(properties.get("pytorch_version")),
        devices=tuple(device for device in devices if isinstance(device, Mapping)),
        ranks=(_count(info.get("rank"), 0, MOST_RANKS - 1),),
        world_size=_count(info.get("world_size"), 1, MOST_RANKS),
        properties={key: value for key, value in properties.items() if key not in _ELSEWHERE},
    )


def _size(section: Any) -> int:
    return len(section) if isinstance(section, list | dict | str) else 1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any, default: int, most: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= most else default
