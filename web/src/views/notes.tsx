import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { duration } from "../base/format";
import type { Note } from "../model/notes";
import { goToNote, writeNote, writtenOf } from "../state/notes";
import type { Store } from "../state/store";
import type { Pane } from "./pane";

/** What somebody wrote about this trace; the URL holds it. */
export const notes: Pane = {
  id: "notes",
  title: "Notes",
  hint: "Notes pinned to a moment or a row; the URL holds them",
  View: ({ store }) => (
    <div class="notes">
      <ol aria-label="Notes">
        {notesOf(store).map(({ note, at }) => (
          <Line key={at} store={store} note={note} at={at} />
        ))}
      </ol>
      <p class="dim">The URL of this page holds the notes: copy it to share them.</p>
    </div>
  ),
};

/** The notes about the trace on screen, each with its place among all. */
export function notesOf(store: Store): { note: Note; at: number }[] {
  const trace = store.client.value?.trace;
  return store.view.value.notes
    .map((note, at) => ({ note, at }))
    .filter(({ note }) => note.trace === trace);
}

function Line({ store, note, at }: { store: Store; note: Note; at: number }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  const written = writtenOf(store);
  useLayoutEffect(() => {
    if (written.value === at) input.current!.focus();
  }, [written.value]);
  const where = note.path ? `${note.label}, at ${duration(note.time)}` : note.label;
  return (
    <li>
      <button type="button" class="chip" title="Go there" onClick={() => goToNote(store, note)}>
        {where}
      </button>
      <input
        ref={input}
        type="text"
        maxLength={MOST_LETTERS}
        aria-label={`Note on ${where}`}
        placeholder="Add a note"
        value={note.text}
        onKeyDown={(event) => {
          if (event.key === "Enter" || event.key === "Escape") event.currentTarget.blur();
        }}
        onBlur={(event) => {
          written.value = -1;
          if (event.currentTarget.value !== note.text || !note.text)
            writeNote(store, at, event.currentTarget.value);
        }}
      />
      <button
        type="button"
        class="icon"
        aria-label={`Delete the note on ${where}`}
        title="Delete"
        onClick={() => writeNote(store, at, "")}
      >
        ×
      </button>
    </li>
  );
}

const MOST_LETTERS = 500;
