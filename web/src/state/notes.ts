import { signal } from "@preact/signals";
import { duration } from "../base/format";
import { parent } from "../base/path";
import { spanOf } from "../model/level";
import { withNote, type Note, type TableRow } from "../model/notes";
import { axisOf } from "./axis";
import { perStore } from "./per_store";
import { spot, type Store } from "./store";
import type { View } from "./url";

/** The note that is being written, by its place; -1 for none. */
export const writtenOf = perStore(() => signal(-1));

/** The panes that have a row for what a note may be pinned to. */
const PANES: Record<string, string> = { module: "modules", kernel: "kernels", finding: "findings" };

/** Where the tables are whose rows notes can be pinned to. */
const TABLES: Record<string, Partial<View>> = {
  kernels: { pane: "kernels", roofline: false },
  roofline: { pane: "kernels", roofline: true },
  modules: { pane: "modules" },
  collectives: { pane: "collectives", byRank: false },
  arrivals: { pane: "collectives", byRank: true },
  living: { pane: "memory" },
  segments: { pane: "memory" },
};

/** Whether the rows of a table stay what they are, so that notes can be pinned to them. */
export function holdsNotes(table: string): boolean {
  return table in TABLES;
}

/** The row that somebody went to from its note. */
export const shownRowOf = perStore(() => signal<TableRow | null>(null));

/** Pins a note to a row of a table, or goes on with the one that is there. */
export function noteRow(store: Store, row: TableRow, label: string): void {
  const { notes } = store.view.value;
  const is = (one: Note): boolean => one.row?.table === row.table && one.row.key === row.key;
  const at = notes.findIndex((one) => one.trace === store.client.value?.trace && is(one));
  if (at < 0) return add(store, { time: -1, path: "", subject: null, row, label });
  writtenOf(store).value = at;
  store.set({ pane: "notes" });
}

/** Pins a note to a moment. */
export function noteMoment(store: Store, time: number): void {
  add(store, { time, path: "", subject: null, row: null, label: duration(time) });
}

/** Pins a note to the chosen operation, and to the row that led to it. */
export function noteChosen(store: Store): void {
  const { view, details, selected } = store;
  const place = store.place.value;
  const span = place && spanOf(place.level, place.index);
  if (!span) return;
  const { subject } = view.value;
  const name = details.value.value?.name ?? "";
  const label = (subject && selected.value.value?.title) || name;
  add(store, { time: span.from, path: view.value.chosen, subject, row: null, label });
}

function add(store: Store, note: Omit<Note, "trace" | "text">): void {
  const trace = store.client.value?.trace;
  if (trace === undefined) return;
  const { notes } = store.view.value;
  writtenOf(store).value = notes.length;
  store.set({ notes: [...notes, { ...note, trace, text: "" }], pane: "notes" });
}

/** Changes the text of a note; one without text is taken away. */
export function writeNote(store: Store, at: number, text: string): void {
  const { notes } = store.view.value;
  const note = notes[at];
  if (note) store.set({ notes: withNote(notes, at, text.trim() ? { ...note, text } : null) });
}

/** Goes to what a note is pinned to. */
export function goToNote(store: Store, note: Note): void {
  if (note.row) return goToRow(store, note.row);
  if (!note.path) {
    const axis = axisOf(store);
    const { from, to } = axis.window.peek();
    axis.show({ from: note.time - (to - from) / 2, to: note.time + (to - from) / 2 });
    return;
  }
  const kind = Object.keys(note.subject ?? {}).find((key) => key in PANES);
  const pane = kind ? { pane: PANES[kind]! } : {};
  store.set({ ...spot(parent(note.path), note.path), subject: note.subject, ...pane });
}

/** Shows a row of a table, without a filter that may hide it. */
function goToRow(store: Store, row: TableRow): void {
  shownRowOf(store).value = row;
  const { [row.table]: choice, ...others } = store.view.peek().tables;
  const tables = choice ? { ...others, [row.table]: { ...choice, filter: "" } } : others;
  store.set({ ...TABLES[row.table], tables });
}
