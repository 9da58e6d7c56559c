import { effect, signal, type ReadonlySignal } from "@preact/signals";

/** An answer on its way: the one before stays in `value` until the next is there. */
export interface Loaded<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

/**
 * Follows a question whose parts are signals: asks anew when one changes, and keeps only the newest.
 *
 * @param ask reads signals and gives the answer's promise, or null for nothing to ask.
 */
export function latest<T>(ask: () => Promise<T> | null): ReadonlySignal<Loaded<T>> {
  const state = signal<Loaded<T>>({ value: null, error: "", loading: false });
  let newest = 0;
  effect(() => {
    const number = ++newest;
    const answer = ask();
    if (!answer) {
      state.value = { value: null, error: "", loading: false };
      return;
    }
    state.value = { ...state.peek(), loading: true };
    answer.then(
      (value) => {
        if (number === newest) state.value = { value, error: "", loading: false };
      },
      (error: unknown) => {
        const message = error instanceof Error ? error.message : String(error);
        if (number === newest) state.value = { value: null, error: message, loading: false };
      },
    );
  });
  return state;
}
