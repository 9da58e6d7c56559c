import type { Store } from "../state/store";

/** A name for a file with something of the trace on screen. */
export function fileName(store: Store, what: string): string {
  return `${store.entry.value?.id ?? "trace"} ${what}`;
}
