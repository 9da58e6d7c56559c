import { NO_CHOICE, type TableChoice } from "../model/table/choice";
import type { Store } from "./store";

/** A table whose choice lies in the view, and so in the URL. */
export function keptTable(
  store: Store,
  id: string,
): { choice: TableChoice; choose: (to: TableChoice) => void } {
  return {
    choice: store.view.value.tables[id] ?? NO_CHOICE,
    choose: (to) => store.set({ tables: { ...store.view.peek().tables, [id]: to } }),
  };
}
