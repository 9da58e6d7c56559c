import type { QueryResult, ResultColumn, TraceTable } from "../api/types";
import type { Span } from "./span";

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

/** A row of a result as a piece of the time axis. */
export interface RowSpan extends Span {
  name: string;
  event: number | null;
  /** The line of the track that it is drawn on: rows that overlap are on several. */
  line: number;
}

/** A track of a query has so many lines; what finds no room is on the last. */
export const MOST_LINES = 4;

/** The rows that have a `start_ns`, and a `duration_ns` or an `end_ns`, by start; null for no such columns. */
export function spansOf(sql: string, { columns, rows }: QueryResult): RowSpan[] | null {
  const place = (name: string): number =>
    columns.findIndex((one) => one.name === name && one.numeric);
  const [start, length, end] = [place("start_ns"), place("duration_ns"), place("end_ns")];
  if (start < 0 || (length < 0 && end < 0)) return null;
  const [event, name] = [eventColumn(sql, columns), columns.findIndex((one) => !one.numeric)];
  const found = rows.flatMap((cells): RowSpan[] => {
    const [from, until] = [cells[start], cells[length < 0 ? end : length]];
    if (typeof from !== "number" || typeof until !== "number") return [];
    const id = cells[event];
    const named = String(cells[name] ?? "");
    const to = length < 0 ? until : from + until;
    return [
      { from, to, name: named, event: typeof id === "number" && id >= 0 ? id : null, line: 0 },
    ];
  });
  found.sort((a, b) => a.from - b.from);
  const ends: number[] = [];
  for (const one of found) {
    const free = Array.from({ length: MOST_LINES }, (_, n) => n).find(
      (n) => (ends[n] ?? -1) <= one.from,
    );
    one.line = free ?? MOST_LINES - 1;
    ends[one.line] = Math.max(ends[one.line] ?? 0, one.to);
  }
  return found;
}
