import type { TableChoice } from "../model/table/choice";
import { NO_CHOICE } from "../model/table/choice";
import { notesOnRows } from "../model/notes";
import { holdsNotes, noteRow, shownRowOf } from "./notes";
import type { Store } from "./store";

/** A table whose choice lies in the view, and so in the URL, and whose rows may have notes. */
export interface KeptTable {
  choice: TableChoice;
  choose: (to: TableChoice) => void;
  /** Texts of notes by the keys of rows, and how to write one; none where rows do not last. */
  notes: {
    of: ReadonlyMap<string, { text: string }>;
    pin: (key: string, label: string) => void;
  } | null;
  /** The row that somebody went to from its note. */
  shown: string | null;
}

export function keptTable(store: Store, table: string): KeptTable {
  const { tables, notes } = store.view.value;
  const trace = store.client.value?.trace ?? "";
  const shown = shownRowOf(store).value;
  return {
    choice: tables[table] ?? NO_CHOICE,
    choose: (to) => store.set({ tables: { ...store.view.peek().tables, [table]: to } }),
    notes: holdsNotes(table)
      ? {
          of: notesOnRows(notes, trace, table),
          pin: (key, label) => noteRow(store, { table, key }, label),
        }
      : null,
    shown: shown?.table === table ? shown.key : null,
  };
}
