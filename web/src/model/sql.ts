import type { ResultColumn, TraceTable } from "../api/types";

/** More names than these are not read while typing. */
const MOST = 8;

/** The column of a result that holds ids of events: `event`, or `id` of a query of `events`. */
export function eventColumn(sql: string, columns: readonly ResultColumn[]): number {
  const named = columns.findIndex((one) => one.name === "event" && one.numeric);
  const read = [...sql.matchAll(/\b(?:from|join)\s+(\w+)/gi)].map((one) => one[1]!.toLowerCase());
  if (named >= 0 || read.length !== 1 || read[0] !== "events") return named;
  return columns.findIndex((one) => one.name === "id" && one.numeric);
}

/** The word that ends at a place of a query. */
export function wordBefore(sql: string, at: number): string {
  return /[A-Za-z_]\w*$/.exec(sql.slice(0, at))?.[0] ?? "";
}

/** Tables and columns that go on with a word; columns of the tables that the query names, if any. */
export function completions(sql: string, at: number, tables: readonly TraceTable[]): string[] {
  const word = wordBefore(sql, at).toLowerCase();
  if (!word) return [];
  const words = new Set(sql.toLowerCase().match(/\w+/g));
  const read = tables.filter((one) => words.has(one.name));
  const columns = (read.length ? read : tables).flatMap((one) => one.columns);
  const names = [...tables, ...columns].map((one) => one.name);
  const goesOn = (name: string): boolean => name.startsWith(word) && name !== word;
  return [...new Set(names.filter(goesOn))].slice(0, MOST);
}
