import { signal } from "@preact/signals";
import { duration } from "../base/format";
import { parent } from "../base/path";
import { spanOf } from "../model/level";
import { withNote, type Note } from "../model/notes";
import { axisOf } from "./axis";
import { perStore } from "./per_store";
import { spot, type Store } from "./store";

/** The note that is being written, by its place; -1 for none. */
export const writtenOf = perStore(() => signal(-1));

/** The panes that have a row for what a note may be pinned to. */
const PANES: Record<string, string> = { module: "modules", kernel: "kernels", finding: "findings" };

/** Pins a note to a moment. */
export function noteMoment(store: Store, time: number): void {
  add(store, { time, path: "", subject: null, label: duration(time) });
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
  add(store, { time: span.from, path: view.value.chosen, subject, label });
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
