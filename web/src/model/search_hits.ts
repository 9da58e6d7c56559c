import type { FoundEvents, SearchHits } from "../api/types";

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

const starts = new WeakMap<SearchHits, Map<string | undefined, number[]>>();

/** When the hits begin: those of a track of the axis, or all. */
export function startsOf(hits: SearchHits, track?: string): readonly number[] {
  let known = starts.get(hits);
  if (!known) {
    const { start_ns, track: number } = hits.events;
    known = new Map([[undefined, start_ns]]);
    for (const [row, ns] of start_ns.entries()) {
      const id = `t${number[row]!}`;
      const here = known.get(id);
      if (here) here.push(ns);
      else known.set(id, [ns]);
    }
    starts.set(hits, known);
  }
  return known.get(track) ?? [];
}

/** Whether the slices of a name, short or as recorded, are hits. */
export function isFound({ text, names }: SearchHits): (name: string) => boolean {
  const known = new Set(names.flatMap(({ name, short }) => [name, short]));
  const wanted = text.toLowerCase();
  return (name) => known.has(name) || name.toLowerCase().includes(wanted);
}
