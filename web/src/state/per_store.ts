import type { Store } from "./store";

/**
 * Something that a view keeps for each store: made when the view first asks, and then kept.
 *
 * So what a pane shows is asked for from its first time on screen on, and lies in its own file.
 */
export function perStore<T>(make: (store: Store) => T): (store: Store) => T {
  const kept = new WeakMap<Store, T>();
  return (store) => {
    const known = kept.get(store) ?? make(store);
    kept.set(store, known);
    return known;
  };
}
