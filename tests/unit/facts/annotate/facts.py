"""Short ways to say what was derived from a drawn trace."""

from __future__ import annotations

from typing import Any

from stepscope.trace.trace import Trace


def of_events(trace: Trace, *columns: str) -> dict[str, Any]:
    """Name of each event to the value of a column (a tuple of several); equal names to a list."""
    found: dict[str, list[Any]] = {}
    for row in trace.events.rows():
        value = tuple(row[column] for column in columns)
        found.setdefault(row["name"], []).append(value if len(columns) > 1 else value[0])
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def module_of_events(trace: Trace) -> dict[str, Any]:
    """Name of each event to the path of its module."""
    paths = trace["modules"].text("path")
    found = of_events(trace, "module")
    return {name: _path(paths, value) for name, value in found.items()}


def _path(paths: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_path(paths, one) for one in value]
    return None if value is None else paths[value]


def us(trace: Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of a table, its times in microseconds."""
    return [tuple(_in_us(column, row[column]) for column in columns) for row in trace[table].rows()]


def _in_us(column: str, value: Any) -> Any:
    return value / 1000 if column.endswith("_ns") and value is not None else value


def warning_codes(trace: Trace) -> dict[str, int]:
    """Code of each warning to its count."""
    return {row["code"]: row["count"] for row in trace["warnings"].rows()}
