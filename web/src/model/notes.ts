import type { Subject } from "../api/client";

/** A row of a table, by the table's name and the row's key. */
export interface TableRow {
  table: string;
  key: string;
}

/** A remark on a moment of the time axis, on an operation and the row that led to it, or on a row. */
export interface Note {
  /** The trace that it is about, by its id. */
  trace: string;
  /** Where it is on the time axis, ns; -1 for a row of a table. */
  time: number;
  /** The operation; empty for a moment. */
  path: string;
  /** The row of a pane that was chosen; null for none. */
  subject: Subject | null;
  /** The row of a table that it is pinned to; null for none. */
  row: TableRow | null;
  /** What it is pinned to, in words. */
  label: string;
  text: string;
}

/** The notes with one of them changed, or taken away where it is null. */
export function withNote(notes: readonly Note[], at: number, note: Note | null): Note[] {
  return notes.flatMap((one, i) => (i !== at ? [one] : note ? [note] : []));
}

/** The notes of a trace that lie in a span, by time, each with its place among all notes. */
export function notesIn(
  notes: readonly Note[],
  trace: string,
  { from, to }: { from: number; to: number },
): { note: Note; at: number }[] {
  return notes
    .map((note, at) => ({ note, at }))
    .filter(({ note }) => note.trace === trace && note.time >= from && note.time <= to)
    .sort((a, b) => a.note.time - b.note.time);
}

/** The notes on the rows of a table, by their keys, each with its place among all notes. */
export function notesOnRows(
  notes: readonly Note[],
  trace: string,
  table: string,
): ReadonlyMap<string, { text: string; at: number }> {
  return new Map(
    notes.flatMap(({ row, text, ...note }, at) =>
      row?.table === table && note.trace === trace ? [[row.key, { text, at }] as const] : [],
    ),
  );
}
