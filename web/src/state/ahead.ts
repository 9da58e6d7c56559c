import { effect } from "@preact/signals";
import type { Client } from "../api/client";
import type { WireLevel } from "../api/types";
import { join, stepOf } from "../base/path";
import type { Level } from "../model/level";
import type { Store } from "./store";

/** Between two answers others have their turn, ms. */
const PAUSE_MS = 150;
const MOST_STEPS = 8;
const MOST_OPERATIONS = 5;

/**
 * Asks for the levels that may be opened next, so that a click finds them here: two levels below the
 * lowest, then the steps nearby and what is inside their stages. One answer at a time, until somebody
 * goes on.
 */
export function lookAhead(store: Store): void {
  let newest = 0;
  effect(() => {
    const number = ++newest;
    const [client, { value, loading }] = [store.client.value, store.levels.value];
    const every = store.view.peek().every;
    if (!client || !value || loading || !store.host.live) return;
    const lasts = (): boolean => number === newest && navigator.onLine;
    void ask(client, value, every, lasts).catch(() => undefined);
  });
}

/** Whoever opens a level that could not be had learns what is wrong. */
async function ask(
  client: Client,
  levels: readonly Level[],
  every: boolean,
  lasts: () => boolean,
): Promise<void> {
  await pause(0);
  const paths = pathsAhead(levels);
  for (let at = 0; at < paths.length && lasts(); at++) {
    const path = paths[at]!;
    await client.askInside(path, every);
    const step = stepOf(path) && !path.includes("/") && client.knownLevels(path, every)?.at(-1);
    if (step) paths.push(...longestOf(step).filter((one) => !paths.includes(one)));
    await pause(PAUSE_MS);
  }
}

/** The paths of the levels whose insides are wanted, the most likely first. */
export function pathsAhead(levels: readonly Level[]): string[] {
  const lowest = levels.at(-1)?.wire;
  const steps = levels[0]?.wire.operations.id ?? [];
  const path = lowest?.path ?? "";
  const at = Math.max(steps.indexOf(path.split("/", 1)[0]!), 0);
  const near = steps
    .map((id, number) => ({ id, away: Math.abs(number - at) }))
    .filter(({ id }) => stepOf(id))
    .sort((a, b) => a.away - b.away)
    .slice(0, MOST_STEPS);
  const inside = lowest && path ? longestOf(lowest) : [];
  return [...new Set([path, ...inside, "", ...near.map(({ id }) => id)])];
}

/** The paths of the longest operations of a level that open. */
function longestOf({ path, operations }: WireLevel): string[] {
  const { id, opens, cpu_ns, device_ns } = operations;
  const length = (row: number): number => Math.max(cpu_ns[row]!, device_ns[row]!);
  return [...id.keys()]
    .filter((row) => opens[row])
    .sort((a, b) => length(b) - length(a))
    .slice(0, MOST_OPERATIONS)
    .map((row) => join(path, id[row]!));
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
