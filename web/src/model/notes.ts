import type { Subject } from "../api/client";

/** A remark on a moment of the time axis, or on an operation and the row that led to it. */
export interface Note {
  /** The trace that it is about, by its id. */
  trace: string;
  /** Where it is on the time axis, ns. */
  time: number;
  /** The operation; empty for a moment. */
  path: string;
  /** The row of a pane that was chosen; null for none. */
  subject: Subject | null;
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
