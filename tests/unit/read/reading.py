"""Short ways to read text as a trace and to say what came out."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

from stepscope.read.chrome.trace_events import read_trace_events
from stepscope.trace.trace import Trace


def read_text(text: str | bytes) -> Trace:
    """The trace in some JSON text."""
    data = text.encode() if isinstance(text, str) else text
    return read_trace_events(io.BytesIO(data), False, lambda size: None)


def read_gzip(data: bytes) -> Trace:
    """The trace in some gzip data."""
    return read_trace_events(io.BytesIO(data), True, lambda size: None)


def event(name: str = "mm", ts: Any = 1, dur: Any = 2, **fields: Any) -> dict[str, Any]:
    """A complete event."""
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **fields}


def array_of(*texts: str) -> str:
    """An array of a good event, some text in place of events, and another good event."""
    good = [json.dumps(event("first", 0)), json.dumps(event("last", 100))]
    return "[" + ",\n".join([good[0], *texts, good[1]]) + "]"


def names(trace: Trace) -> list[str | None]:
    """Names of the events in order of start."""
    return list(trace.events.text("name"))


def warnings(trace: Trace) -> dict[str, int]:
    """Counts of the warnings by code."""
    return {row["code"]: row["count"] for row in trace["warnings"].rows()}


def tables(trace: Trace) -> dict[str, list[dict[str, Any]]]:
    """Every table as plain rows, to compare two traces."""
    return {name: list(table.rows()) for name, table in trace.tables.items()}


def packed(*events: Any, **top: Any) -> bytes:
    """A gzip file of a trace that is an object."""
    return gzip.compress(json.dumps({**top, "traceEvents": events}).encode())
