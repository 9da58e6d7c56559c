import type { Pair, PairThread, Rectangles } from "../api/types";
import type { Span } from "./span";

/** A thread of the two pairs, with its rectangles in each by time. */
export interface Row {
  thread: PairThread;
  before: number[];
  after: number[];
}

export type Side = "before" | "after";
export const SIDES: readonly Side[] = ["before", "after"];

/** Both sides, the one on screen first. */
export function sidesOf({ upper }: Pair): readonly Side[] {
  return upper === "before" ? SIDES : [...SIDES].reverse();
}

/** A rectangle of one of the pairs, by its row. */
export interface Spot {
  side: Side;
  row: number;
  index: number;
}

/**
 * The threads as rows, those of a rank together.
 *
 * @param least the share of the longer pair that a thread works in either at least.
 */
export function rowsOf(pair: Pair, least = 0): Row[] {
  const rows: Row[] = pair.threads.map((thread) => ({ thread, before: [], after: [] }));
  const work = rows.map(() => ({ before: 0, after: 0 }));
  for (const side of SIDES) {
    const { thread, duration_us } = pair[side];
    thread.forEach((row, index) => {
      rows[row]![side].push(index);
      work[row]![side] += duration_us[index]!;
    });
  }
  const enough = least * lengthOf(pair);
  return rows
    .filter((row, i) => {
      const busy = Math.max(work[i]!.before, work[i]!.after);
      return row.before.length + row.after.length > 0 && busy >= enough;
    })
    .sort((a, b) => a.thread.rank - b.thread.rank);
}

/** What fills the width, µs: both pairs have the same scale. */
export function lengthOf(pair: Pair): number {
  return Math.max(pair.before.length_us, pair.after.length_us, 1e-3);
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
  pair: Pair,
  rows: readonly Row[],
  from: Spot | null,
  key: string,
): Spot | null {
  const places = rows.flatMap((one, row) =>
    sidesOf(pair).flatMap((side) => (one[side].length ? [{ side, row, inside: one[side] }] : [])),
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
  const us = pair[from.side].start_us[from.index]!;
  const index = rectangleAt(pair[next.side], next.inside, us, Infinity);
  return { side: next.side, row: next.row, index };
}

/** A rectangle's time on the axis, ns since the trace's start. */
export function spanOf(pair: Pair, { side, index }: Spot): Span {
  const from = pair.start_ns + pair[side].start_us[index]! * 1000;
  return { from, to: from + pair[side].duration_us[index]! * 1000 };
}

/** The same piece on the other side; null where there is none. */
export function partnerOf(pair: Pair, { side, row, index }: Spot): Spot | null {
  const partner = pair[side].partner[index]!;
  return partner < 0 ? null : { side: side === "before" ? "after" : "before", row, index: partner };
}

/** How much longer a piece takes after the change than before, and how long it took before, µs. */
export function changeOf(pair: Pair, spot: Spot): { us: number; of: number } {
  const { side, index } = spot;
  const before = side === "before" ? spot : partnerOf(pair, spot);
  return {
    us: pair[side].change_us[index]! * (side === "after" ? 1 : -1),
    of: before ? pair.before.duration_us[before.index]! : 0,
  };
}

/** Whether a rectangle is work that only one side has. */
export function isAlone(drawn: Rectangles, index: number): boolean {
  return drawn.partner[index]! < 0 && drawn.kind[index] !== "idle";
}

/** A difference is larger than this share of the piece, and of the step. */
const VISIBLE = 0.1;
const MATTERS = 0.0005;

/** What differs between the sides, by time: pieces that take longer or shorter, or are alone. */
export function differences(pair: Pair, rows: readonly Row[]): Spot[] {
  const least = MATTERS * lengthOf(pair);
  const found = rows.flatMap((one, row) =>
    SIDES.flatMap((side) =>
      one[side].flatMap((index): Spot[] => {
        const [long, size] = [pair[side].duration_us[index]!, lostIn(pair, side, index)];
        const counts = side === "after" || isAlone(pair[side], index);
        const differs = Math.abs(size) >= Math.max(least, VISIBLE * long);
        return counts && differs && pair[side].kind[index] !== "stage"
          ? [{ side, row, index }]
          : [];
      }),
    ),
  );
  return found.sort((a, b) => spanOf(pair, a).from - spanOf(pair, b).from);
}

/** What a piece costs more on its side than on the other, us: all of it where it is alone. */
export function lostIn(pair: Pair, side: Side, index: number): number {
  const drawn = pair[side];
  return isAlone(drawn, index) ? drawn.duration_us[index]! : drawn.change_us[index]!;
}
