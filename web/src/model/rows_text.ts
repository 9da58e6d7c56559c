import type { QueryResult } from "../api/types";

/** A result as comma-separated values under their names (RFC 4180); null is empty. */
export function csv({ columns, rows }: QueryResult): string {
  const lines = [columns.map((one) => one.name), ...rows];
  return lines.map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

function quoted(value: string | number | boolean | null): string {
  const text = value === null ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The same with tabs, as spreadsheets paste it. */
export function tabs({ columns, rows }: QueryResult): string {
  const lines = [columns.map((one) => one.name), ...rows];
  return lines.map((line) => line.map(flat).join("\t")).join("\n");
}

function flat(value: string | number | boolean | null): string {
  return value === null ? "" : String(value).replace(/[\t\r\n]+/g, " ");
}
