import { effect } from "@preact/signals";
import type { Level } from "../model/level";
import { stepOf } from "../base/path";
import type { Store } from "./store";

/** Between two answers others have their turn, ms. */
const PAUSE_MS = 50;
const MOST_STEPS = 16;

/**
 * Asks for the levels that may be opened next, so that a click finds them here: first those inside
 * the lowest level, then the steps and their stages. One answer at a time, until somebody goes on.
 */
export function lookAhead(store: Store): void {
  let newest = 0;
  effect(() => {
    const number = ++newest;
    const [client, { value, loading }] = [store.client.value, store.levels.value];
    const every = store.view.peek().every;
    if (!client || !value || loading || !store.host.live) return;
    void (async () => {
      await pause(0);
      for (const path of pathsAhead(value)) {
        if (number !== newest) return;
        await client.askInside(path, every);
        await pause(PAUSE_MS);
      }
    })().catch(() => undefined); // who opens the level learns what is wrong
  });
}

/** The paths of the levels whose insides are wanted, the most likely first. */
export function pathsAhead(levels: readonly Level[]): string[] {
  const steps = levels[0]?.wire.operations.id ?? [];
  const path = levels.at(-1)?.path ?? "";
  const at = Math.max(steps.indexOf(path.split("/", 1)[0]!), 0);
  const near = steps
    .map((id, number) => ({ id, away: Math.abs(number - at) }))
    .filter(({ id }) => stepOf(id))
    .sort((a, b) => a.away - b.away)
    .slice(0, MOST_STEPS);
  return [...new Set([path, "", ...near.map(({ id }) => id)])];
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
