"""The immutable set of tables that every part of stepscope reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from stepscope.errors import TraceError
from stepscope.trace.arguments import Arguments
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.table import Table, Text

if TYPE_CHECKING:
    import pandas
    import pyarrow


@dataclass(frozen=True)
class Metadata:
    """What is known of a trace beside its tables.

    Attributes:
        source: the file or folder it was read from.
        format: name of the reader that read it.
        framework: `pytorch`, or empty where unknown.
        framework_version: as recorded, or empty.
        devices: one dict a device, with at least `name` where recorded.
        ranks: the ranks in it.
        world_size: processes of the distributed job, 1 where there is none.
        origin_ns: the recording clock's time at this trace's zero, ns.
        tolerance_ns: how far the recorder rounds times; nesting allows for it.
        capture: the manifest of a stepscope capture, else empty.
        model: the model tree in force, as `modules.json` or `--model` gave it, else empty.
        properties: everything else at the top level of the file.
    """

    source: str = ""
    format: str = ""
    framework: str = ""
    framework_version: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()
    ranks: tuple[int, ...] = (0,)
    world_size: int = 1
    origin_ns: int = 0
    tolerance_ns: int = 0
    capture: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def device(self, number: int) -> Mapping[str, Any]:
        """What is known of the device of this number, empty where nothing is.

        On AMD events count CPUs among the devices and the list does not: where all in it have one
        name, that one is meant.
        """
        known = enumerate(self.devices)
        mine = [one for place, one in known if one.get("id", one.get("index", place)) == number]
        alike = len({str(one.get("name", "")) for one in self.devices}) == 1
        return next(iter([*mine, *(self.devices if alike else ())]), {})

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write and `from_json` can read."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metadata:
        """The inverse of `to_json`."""
        return cls(**{**data, "devices": tuple(data["devices"]), "ranks": tuple(data["ranks"])})


class Trace:
    """An immutable set of tables (see `docs/schema.md`), with metadata.

    Args:
        tables: tables by name; those left out are empty.
        metadata: what is known beside the tables.
        arguments: the events' own arguments, as recorded.

    Example:
        >>> import stepscope
        >>> trace = stepscope.open("run.stepscope")       # doctest: +SKIP
        >>> trace["steps"]["end_ns"] - trace["steps"]["start_ns"]  # doctest: +SKIP
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        metadata: Metadata | None = None,
        arguments: Arguments | None = None,
    ) -> None:
        self._tables = {
            name: tables.get(name) or Table(schema, {}) for name, schema in SCHEMAS.items()
        }
        self.metadata = metadata or Metadata()
        self.arguments = arguments or Arguments()

    def __repr__(self) -> str:
        """What a prompt or a notebook shows: `<Trace train.stepscope: events 1234, steps 3>`."""
        rows = [f"{name} {len(table)}" for name, table in self._tables.items() if len(table)]
        return f"<Trace {self.metadata.source or '(drawn)'}: {', '.join(rows) or 'empty'}>"

    def __getitem__(self, name: str) -> Table:
        """The table called `name`; raises TraceError where there is none."""
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(SCHEMAS)
            raise TraceError(f"no table is called {name!r}; there are {known}") from None

    @property
    def events(self) -> Table:
        """The events table."""
        return self._tables["events"]

    @property
    def tables(self) -> dict[str, Table]:
        """Every table by name."""
        return dict(self._tables)

    def with_table(self, table: Table) -> Trace:
        """A trace like this one with one table replaced; the others are shared."""
        return Trace({**self._tables, table.schema.name: table}, self.metadata, self.arguments)

    def with_events(self, **columns: ArrayLike | Text) -> Trace:
        """A trace like this one with some columns of its events replaced."""
        return self.with_table(self.events.with_columns(**columns))

    def with_metadata(self, **changes: Any) -> Trace:
        """A trace like this one with some metadata replaced."""
        return Trace(self._tables, replace(self.metadata, **changes), self.arguments)

    def with_warnings(self, rows: Iterable[tuple[str, str, int]]) -> Trace:
        """A trace like this one with further warnings (code, message, count)."""
        table = self._tables["warnings"]
        old = [(row["rank"], row["code"], row["message"], row["count"]) for row in table.rows()]
        new = [(self.metadata.ranks[0], *row) for row in rows]
        ranks, codes, messages, counts = zip(*(old + new), strict=True) if old + new else ((),) * 4
        columns = {"rank": ranks, "code": codes, "message": messages, "count": counts}
        return self.with_table(Table(table.schema, columns))

    def event_arguments(self, event: int) -> dict[str, Any]:
        """The recorded arguments of one event (shapes, grid, stream, …), empty where none."""
        return self.arguments.of(int(self.events["source"][event]))

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
        from stepscope.trace.query import arrow_table

        return arrow_table(self[table]).to_pandas()
