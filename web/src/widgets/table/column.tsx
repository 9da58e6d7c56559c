import type { ComponentChildren } from "preact";
import type { Field } from "../../model/table/field";
import { percent } from "../../base/format";
import { ShareBar } from "../bars";

/** A column: what is known of it, and how it is drawn. */
export interface Column<Row> extends Field<Row> {
  hint?: string;
  /** Left out where the window is narrow; `last` where it is narrower still. */
  minor?: boolean | "last";
  /** Takes the room that the others leave, and is cut where that is not enough. */
  grows?: boolean;
  strong?: boolean;
  /** A number of it, of one row or of many. */
  format?: (value: number) => ComponentChildren;
  /** What it shows where it has no value. */
  none?: string;
  /** What a row shows where that is more than its value; `open` opens it in a tree. */
  cell?: (row: Row, open: () => void) => ComponentChildren;
}

export function textColumn<Row>(
  id: string,
  title: string,
  value: (row: Row) => string,
  rest: Partial<Column<Row>> = {},
): Column<Row> {
  return { id, title, value, ...rest };
}

/** A column of text that is cut where the room is not enough. */
export function nameColumn<Row>(
  id: string,
  title: string,
  value: (row: Row) => string,
  rest: Partial<Column<Row>> = {},
): Column<Row> {
  const cell = (row: Row): ComponentChildren => (
    <span class="name-cell" title={String(rest.full?.(row) ?? value(row))}>
      <span class="name-text">{value(row)}</span>
    </span>
  );
  return textColumn(id, title, value, { cell, ...rest });
}

/** A column of numbers; nothing where one is null. */
export function numberColumn<Row>(
  id: string,
  title: string,
  value: (row: Row) => number | null,
  format: (value: number) => ComponentChildren,
  rest: Partial<Column<Row>> = {},
): Column<Row> {
  return { id, title, numeric: true, value, format, ...rest };
}

/** A share with its bar. */
export function shareText(share: number): ComponentChildren {
  return (
    <span class="share-cell">
      <ShareBar share={share} />
      {percent(share)}
    </span>
  );
}

/** What a cell shows for a row. */
export function cellOf<Row>(column: Column<Row>, row: Row, open: () => void): ComponentChildren {
  return column.cell ? column.cell(row, open) : shown(column, column.value?.(row) ?? null);
}

/** What a cell shows for many rows together. */
export function totalOf<Row>(column: Column<Row>, rows: readonly Row[]): ComponentChildren {
  return column.total ? shown(column, column.total(rows)) : null;
}

function shown<Row>(column: Column<Row>, value: string | number | null): ComponentChildren {
  if (value === null) return column.none ?? "–";
  return typeof value === "number" && column.format ? column.format(value) : String(value);
}

export function cellClass<Row>(column: Column<Row>): string | undefined {
  const { numeric, grows, minor, strong } = column;
  const [last, first] = [minor === "last", minor === true];
  const names = { number: numeric, grows, minor: first, "minor-last": last, strong };
  const on = Object.entries(names).flatMap(([name, is]) => (is ? [name] : []));
  return on.join(" ") || undefined;
}
