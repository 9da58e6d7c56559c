import { batch, effect, signal, type ReadonlySignal } from "@preact/signals";
import { AskError } from "../api/host";
import { messageOf } from "../base/error";
import { count } from "./awaited";

/** An answer on its way: the one before stays in `value` until the next is there. */
export interface Loaded<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

/**
 * Follows a question whose parts are signals: asks again when one changes, and keeps only the newest.
 *
 * @param ask reads signals and gives the answer's promise, the answer itself where it is known, or
 *   null for nothing to ask.
 */
export function latest<T>(ask: () => Promise<T> | T | null): ReadonlySignal<Loaded<T>> {
  const state = signal<Loaded<T>>({ value: null, error: "", loading: false });
  const say = (value: T | null, error = "", loading = false): void =>
    batch(() => {
      count(Number(loading) - Number(state.peek().loading));
      state.value = { value, error, loading };
    });
  let newest = 0;
  effect(() => {
    const number = ++newest;
    const answer = ask();
    if (!(answer instanceof Promise)) return say(answer);
    say(state.peek().value, "", true);
    answer.then(
      (value) => number === newest && say(value),
      (error: unknown) => number === newest && say(kept(error, state.peek()), messageOf(error)),
    );
  });
  return state;
}

/** What stays on screen: where nothing answers at all, what was there. */
function kept<T>(error: unknown, before: Loaded<T>): T | null {
  return error instanceof AskError && error.status === 0 ? before.value : null;
}
