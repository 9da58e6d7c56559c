import { effect } from "@preact/signals";
import type { Client } from "../api/client";
import type { WireLevel } from "../api/types";
import { painted } from "../base/frame";
import { join, stepOf } from "../base/path";
import type { Level } from "../model/level";
import { atRest, whileAtRest } from "./awaited";
import type { Store } from "./store";

/** So long nobody waits for anything, nor moves the view, before the next question. */
const REST_MS = 60;
const MOST_STEPS = 8;
const MOST_OPERATIONS = 5;

/**
 * Asks for the levels that may be opened next, so that a click finds them here: two levels below the
 * lowest, then the steps nearby and what is inside their stages. One answer at a time, while the view
 * is at rest: a question that is not answered yet when somebody goes on is withdrawn.
 */
export function lookAhead(store: Store): void {
  let newest = 0;
  let of: Client | null = null;
  let before: readonly Level[] | null = null; // of the trace that was open before, which stay a moment
  effect(() => {
    const number = ++newest;
    const [client, { value, loading }] = [store.client.value, store.levels.value];
    const every = store.view.peek().every;
    if (client !== of) [of, before] = [client, value];
    if (!client || !value || value === before || loading || !store.host.live) return;
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
  const paths = pathsAhead(levels);
  await painted();
  if (lasts()) await client.askInside(paths[0]!, every); // what is on screen is opened most often
  for (let at = 0; at < paths.length && lasts(); at++) {
    const path = paths[at]!;
    await askAtRest(client, path, every, lasts);
    const step = stepOf(path) && !path.includes("/") && client.knownLevels(path, every)?.at(-1);
    if (step) paths.push(...longestOf(step).filter((one) => !paths.includes(one)));
  }
}

/** Asks for the insides of one level, again where somebody went on before the answer came. */
async function askAtRest(
  client: Client,
  path: string,
  every: boolean,
  lasts: () => boolean,
): Promise<void> {
  while (lasts() && !client.knowsInside(path, every)) {
    await atRest(REST_MS);
    if (!lasts()) return;
    await whileAtRest((signal) =>
      client.askInside(path, every, signal).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      }),
    );
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
