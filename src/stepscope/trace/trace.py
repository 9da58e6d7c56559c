"""A trace: the immutable set of tables that every part of stepscope reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Rows, Times
from stepscope.errors import TraceError, name_hint
from stepscope.trace.arguments import Arguments, parse
from stepscope.trace.nesting import self_times
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.table import Table, Text

if TYPE_CHECKING:
    import pandas
    import pyarrow


WarningRow = tuple[str, str, int]
"""A warning: its code, its message, and how often it occurred."""


@dataclass(frozen=True)
class Metadata:
    """The properties of a trace other than its tables."""

    source: str = ""  # the file or folder it was read from
    format: str = ""  # name of the reader that read it
    framework: str = ""  # such as `pytorch`, empty if unknown
    framework_version: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()  # with at least `name`, if recorded
    ranks: tuple[int, ...] = (0,)  # the ranks in the trace
    world_size: int = 1  # number of processes of the distributed job, 1 if it is not distributed
    origin_ns: int = 0  # the recording clock's time at this trace's zero
    tolerance_ns: int = 0  # the recorder's rounding of times, which nesting allows for
    capture: Mapping[str, Any] = field(default_factory=dict)  # the manifest of a stepscope capture
    captures: Mapping[str, Any] = field(default_factory=dict)  # the same by rank, where several were joined
    # Of a capture's steps on the CPU, if times are without the cost of recording: `recorded_ns` (a
    # mean), `unrecorded_ns` (of steps with the same work), and per step `removed_ns` of `events`
    # events, of which `memory_ns` is of new pages of memory; `estimated_steps` are like no unrecorded
    # ones, and no recorded one is like a share of `missing_share` of these. `unknown` says why not.
    recording_cost: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)  # the tree of `modules.json` or `--model`
    properties: Mapping[str, Any] = field(default_factory=dict)  # all else at the top level of the file

    @property
    def is_of_xla(self) -> bool:
        """Whether XLA compiled the recorded programs, those of JAX or of another framework."""
        return self.framework in ("jax", "xla")

    def capture_of(self, rank: int) -> Mapping[str, Any]:
        """The manifest of a rank's own capture."""
        return self.captures.get(str(rank), self.capture)

    def device(self, number: int) -> Mapping[str, Any]:
        """The properties of the device with this number, empty if unknown.

        On AMD, event device numbers count the CPUs, but the list does not contain them: if all
        devices in the list have the same name, the first stands for any number.
        """
        for index, device in enumerate(self.devices):
            if device.get("id", device.get("index", index)) == number:
                return device
        names = {str(device.get("name", "")) for device in self.devices}
        return self.devices[0] if len(names) == 1 else {}

    def to_json(self) -> dict[str, Any]:
        """A dict for `json`; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metadata:
        """The inverse of `to_json`."""
        return cls(**{**data, "devices": tuple(data["devices"]), "ranks": tuple(data["ranks"])})


@cache  # traces share them: one is made for each fact that is added
def _empty_table(name: str) -> Table:
    return Table(SCHEMAS[name], {})


class Trace:
    """An immutable set of tables (see `docs/reference/schema.md`), with metadata.

    Args:
        tables: tables by name; omitted tables are empty.
        metadata: properties other than the tables.
        arguments: the recorded arguments of the events.

    Examples:
        >>> import stepscope
        >>> trace = stepscope.open("run.stepscope")       # doctest: +SKIP
        >>> trace["steps"]["end_ns"] - trace["steps"]["start_ns"]  # doctest: +SKIP
    """

    picture: ClassVar[Callable[[Trace], str | None]] = lambda trace: None  # by those who make reports

    def __init__(
        self,
        tables: Mapping[str, Table],
        metadata: Metadata | None = None,
        arguments: Arguments | None = None,
    ) -> None:
        self._tables = {name: tables[name] if name in tables else _empty_table(name) for name in SCHEMAS}
        self.metadata = metadata or Metadata()
        self.arguments = arguments or Arguments()

    def __repr__(self) -> str:
        """For prompts and notebooks: `<Trace train.stepscope: events 1234, steps 3>`."""
        rows = [f"{name} {len(table)}" for name, table in self._tables.items() if len(table)]
        return f"<Trace {self.metadata.source or '(drawn)'}: {', '.join(rows) or 'empty'}>"

    def _repr_html_(self) -> str | None:
        """For notebooks: the report as a picture; None, for the text above, without steps."""
        return self.picture()

    def __getitem__(self, name: str) -> Table:
        """The table `name`; raises TraceError if it does not exist."""
        try:
            return self._tables[name]
        except KeyError:
            raise TraceError(f"no table {name!r}; {name_hint(name, SCHEMAS)}") from None

    @property
    def events(self) -> Table:
        """The events table."""
        return self._tables["events"]

    @property
    def tables(self) -> dict[str, Table]:
        """Every table by name."""
        return dict(self._tables)

    def with_table(self, table: Table) -> Trace:
        """A copy with one table replaced; the others are shared."""
        return Trace({**self._tables, table.schema.name: table}, self.metadata, self.arguments)

    def with_events(self, **columns: ArrayLike | Text) -> Trace:
        """A copy with some event columns replaced."""
        return self.with_table(self.events.with_columns(**columns))

    def with_metadata(self, **changes: Any) -> Trace:
        """A copy with some metadata replaced."""
        return Trace(self._tables, replace(self.metadata, **changes), self.arguments)

    def with_warnings(self, rows: Iterable[WarningRow]) -> Trace:
        """A copy with additional warnings."""
        table = self._tables["warnings"]
        old = [(row["rank"], row["code"], row["message"], row["count"]) for row in table.rows()]
        new = [(self.metadata.ranks[0], *row) for row in rows]
        ranks, codes, messages, counts = zip(*(old + new), strict=True) if old + new else ((),) * 4
        columns = {"rank": ranks, "code": codes, "message": messages, "count": counts}
        return self.with_table(Table(table.schema, columns))

    def without_warnings(self, codes: Iterable[str]) -> Trace:
        """A copy without the warnings of some codes."""
        table = self._tables["warnings"]
        return self.with_table(table.take(~table.text("code").mask(*codes)))

    def event_arguments(self, event: int) -> dict[str, Any]:
        """The recorded arguments of one event (shapes, grid, stream, …), empty if none."""
        return self.arguments.of(int(self.events["source"][event]))

    def arguments_of(self, events: Rows) -> list[dict[str, Any]]:
        """The recorded arguments of many events, empty where there are none."""
        return [parse(text) for text in self.arguments.texts(self.events["source"][events])]

    def query(self, sql: str) -> pyarrow.Table:
        """The result of SQL over the tables.

        Raises:
            QueryError: if the SQL is wrong; the message is the database's own.

        Example:
            >>> trace.query("select name, sum(self_ns) from events group by 1")  # doctest: +SKIP
        """
        from stepscope.trace.query import run_query

        return run_query(self, sql)

    def to_pandas(self, table: str) -> pandas.DataFrame:
        """One table as a pandas DataFrame, null as NA (needs pandas installed)."""
        return self[table].to_pandas()


def clock_of(metadata: Metadata) -> int:
    """The common clock at a trace's zero; recent Kineto files count from their own base time."""
    base = metadata.properties.get("baseTimeNanoseconds", 0)
    return metadata.origin_ns + (base if isinstance(base, int) and abs(base) < 2**61 else 0)


def on_clock(trace: Trace, start: Times, end: Times, moved: Callable[[Times], Times]) -> Trace:
    """The trace on another clock: with new times of its events, and all others `moved`."""
    own = self_times(trace.events["parent"], start, end - start)
    events = trace.events.with_columns(start_ns=start, duration_ns=end - start, self_ns=own)
    for name, table in trace.tables.items():
        if name != events.schema.name and len(table):
            trace = trace.with_table(with_times(table, moved))
    return trace.with_table(events)


def with_times(table: Table, moved: Callable[[Times], Times]) -> Table:
    """A table with all its times (`Column.refers`) on another clock; null stays null."""
    columns = {}
    for column in table.schema.columns:
        if column.refers == "clock":
            times = table[column.name]
            missing = column.nullable & (times < 0)
            columns[column.name] = np.where(missing, times, moved(times))
    return table.with_columns(**columns) if columns else table


def allocated_peaks(memory: Table, rank: int) -> dict[str, int]:
    """The peak of each device in the table `memory`, bytes; empty where no change was recorded."""
    counted = memory.take((memory["rank"] == rank) & (memory["allocated_bytes"] >= 0))
    device = counted.text("device").compact()
    peaks = np.full(len(device.values) + 1, -1)  # the last is of rows without a device
    np.maximum.at(peaks, device.codes, counted["allocated_bytes"])
    return dict(zip(device.values, peaks.tolist(), strict=False))
