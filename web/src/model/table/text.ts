import type { Value } from "../sort";
import type { Field } from "./field";
import type { Line } from "./lines";

/**
 * The lines of a table as they are shown, under their names with units: in the tree or the groups
 * that are open, each with its level.
 */
export function cellsOf<Row>(
  fields: readonly Field<Row>[],
  lines: readonly Line<Row>[],
): Value[][] {
  const shown = fields.filter((one) => one.value);
  const nested = lines.some((one) => one.opens);
  const level = (value: Value): Value[] => (nested ? [value] : []);
  return [
    [...level("level"), ...shown.map(heading)],
    ...lines.map((line) => [
      ...level(line.depth + 1),
      ...shown.map((one, at) => cell(one, at, line)),
    ]),
  ];
}

function heading<Row>({ over, title, unit }: Field<Row>): string {
  return `${over ? `${over} ` : ""}${title}${unit ? ` (${unit})` : ""}`;
}

function cell<Row>(field: Field<Row>, at: number, line: Line<Row>): Value {
  if (line.group === null) return (field.full ?? field.value!)(line.rows[0]!);
  return at === 0 ? line.group : (field.total?.(line.rows) ?? null);
}

/** Comma-separated values (RFC 4180); null is empty. */
export function csv(cells: readonly Value[][]): string {
  return cells.map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

function quoted(value: Value): string {
  const text = value === null ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The same with tabs, as spreadsheets paste it. */
export function tabs(cells: readonly Value[][]): string {
  return cells.map((line) => line.map(flat).join("\t")).join("\n");
}

function flat(value: Value): string {
  return value === null ? "" : String(value).replace(/[\t\r\n]+/g, " ");
}
