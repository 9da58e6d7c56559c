import type { FoundEvents } from "../api/types";

/** Where somebody is: at a hit, or else in a step of a rank. */
export interface HitPlace {
  event: number | null;
  step: { step: number; rank: number } | null;
}

/**
 * The hit after the one that somebody is at, or before it, going round at the ends.
 *
 * From elsewhere it is the first hit of the step on screen, else of all.
 *
 * @returns its row, -1 if no hit is in a step.
 */
export function nextHit(events: FoundEvents, { event, step }: HitPlace, by: 1 | -1): number {
  const rows = events.event.map((_, row) => row).filter((row) => events.step[row] !== null);
  if (!rows.length) return -1;
  const at = rows.findIndex((row) => events.event[row] === event);
  if (at >= 0) return rows[(at + by + rows.length) % rows.length]!;
  const here = rows.find(
    (row) => events.step[row] === step?.step && events.rank[row] === step?.rank,
  );
  return here ?? rows[0]!;
}
