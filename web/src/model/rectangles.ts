import type { Rectangles, StepOutline, SimulatedThread } from "../api/types";

/** Two timelines that are drawn below each other: simulated steps, or those of two traces. */
export interface TwoTimelines {
  threads: SimulatedThread[];
  before: Rectangles;
  after: Rectangles;
}

/** A thread of the two timelines, with its rectangles in each by time. */
export interface Row {
  thread: SimulatedThread;
  before: number[];
  after: number[];
}

export type Side = "before" | "after";
export const SIDES: readonly Side[] = ["before", "after"];

/** A rectangle of one of the timelines, by its row. */
export interface Spot {
  side: Side;
  row: number;
  index: number;
}

/** The steps of two traces or ranks: what one of them does has a row in both. */
export function together(before: StepOutline, after: StepOutline): TwoTimelines {
  const kinds = [...new Set([...before.rows, ...after.rows])].sort((a, b) => a - b);
  const place = new Map(kinds.map((kind, row) => [kind, row]));
  const named = (kind: number): SimulatedThread =>
    [before, after].map(({ rows, threads }) => threads[rows.indexOf(kind)]).find(Boolean)!;
  const moved = ({ rows, timeline }: StepOutline): Rectangles => ({
    ...timeline,
    thread: timeline.thread.map((row) => place.get(rows[row]!)!),
  });
  return { threads: kinds.map(named), before: moved(before), after: moved(after) };
}

/**
 * The threads as rows, those of a rank together.
 *
 * @param least the share of the longer timeline that a thread works in either at least.
 */
export function rowsOf(timeline: TwoTimelines, least = 0): Row[] {
  const rows: Row[] = timeline.threads.map((thread) => ({ thread, before: [], after: [] }));
  const work = rows.map(() => ({ before: 0, after: 0 }));
  for (const side of SIDES) {
    const { thread, duration_us } = timeline[side];
    thread.forEach((row, index) => {
      rows[row]![side].push(index);
      work[row]![side] += duration_us[index]!;
    });
  }
  const enough = least * lengthOf(timeline);
  return rows
    .filter((row, i) => {
      const busy = Math.max(work[i]!.before, work[i]!.after);
      return row.before.length + row.after.length > 0 && busy >= enough;
    })
    .sort((a, b) => a.thread.rank - b.thread.rank);
}

/** What fills the width, µs: both timelines have the same scale. */
export function lengthOf(timeline: TwoTimelines): number {
  return Math.max(timeline.before.length_us, timeline.after.length_us, 1e-3);
}

/** The rectangle of a row at a time, or the nearest one within `reach`; -1 for none. */
export function rectangleAt(
  drawn: Rectangles,
  row: readonly number[],
  us: number,
  reach: number,
): number {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (drawn.start_us[row[middle]!]! <= us) low = middle + 1;
    else high = middle;
  }
  const away = (index: number | undefined): number => {
    if (index === undefined) return Infinity;
    const start = drawn.start_us[index]!;
    return Math.max(start - us, us - start - drawn.duration_us[index]!, 0);
  };
  const [earlier, later] = [row[low - 1], row[low]];
  const nearest = away(earlier) <= away(later) ? earlier : later;
  return nearest !== undefined && away(nearest) <= reach ? nearest : -1;
}

/** Where an arrow key leads: to a neighbor on the thread, or to a thread above or below. */
export function neighbor(
  timeline: TwoTimelines,
  rows: readonly Row[],
  from: Spot | null,
  key: string,
): Spot | null {
  const places = SIDES.flatMap((side) =>
    rows.flatMap((one, row) => (one[side].length ? [{ side, row, inside: one[side] }] : [])),
  );
  const at = places.findIndex((one) => one.side === from?.side && one.row === from.row);
  if (!from || at < 0) {
    const first = places[0];
    return first ? { side: first.side, row: first.row, index: first.inside[0]! } : null;
  }
  const { inside } = places[at]!;
  const place = inside.indexOf(from.index);
  if (key === "ArrowLeft") return { ...from, index: inside[Math.max(place - 1, 0)]! };
  if (key === "ArrowRight")
    return { ...from, index: inside[Math.min(place + 1, inside.length - 1)]! };
  const next = places[at + (key === "ArrowDown" ? 1 : -1)];
  if (!next) return from;
  const us = timeline[from.side].start_us[from.index]!;
  const index = rectangleAt(timeline[next.side], next.inside, us, Infinity);
  return { side: next.side, row: next.row, index };
}

/** How long a stage runs on each row of one of the timelines, µs; rows without it are left out. */
export function timesOf(
  timeline: TwoTimelines,
  rows: readonly Row[],
  side: Side,
  stage: string,
): [row: string, us: number][] {
  const drawn = timeline[side];
  return rows.flatMap(({ thread, [side]: inside }): [string, number][] => {
    const mine = inside.filter((index) => drawn.stage[index] === stage);
    const us = mine.reduce((total, index) => total + drawn.duration_us[index]!, 0);
    return mine.length ? [[thread.name, us]] : [];
  });
}
