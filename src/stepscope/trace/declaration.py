"""How a table is declared: its columns, their types and what they mean."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column: `kind` is i8, i16, i32, i64, f64 or text; a nullable integer stores null as -1.

    `refers` names the table whose row numbers it holds, or is `file` for positions in the source
    file, or `clock` for times on the trace's clock. Text with a closed list of `values` is coded by
    their order.
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    nullable: bool = False
    refers: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """One table: its name, the meaning of a row, and its columns."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column `name`; raises KeyError if it does not exist."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def id_column(what: str) -> Column:
    """The row number of a table, which is not stored."""
    return Column("id", "i32", f"row number of the {what}")


def rank_column() -> Column:
    """The process that a row belongs to."""
    return Column("rank", "i32", "rank of the process in a distributed job, 0 if there is only one")
