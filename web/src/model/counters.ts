import type { Axis, CounterRow, CounterTile as Wire } from "../api/types";
import { bytes, percent, significant } from "../base/format";
import type { Span } from "./span";
import { rangeOf, type Piece, type TileKey } from "./tiles";
import type { Listing } from "./tracks";

/** Counters of a rank beyond so many are listed on demand. */
const FEW = 8;
/** Values that vary by less than this share of the largest are drawn from the least on. */
const FLAT = 0.2;

/** What a tile shows of a counter: runs that each last until the next, ns since the trace's start. */
export interface CounterTile extends TileKey {
  exact: boolean;
  to: number;
  start: Float64Array;
  least: Float64Array;
  most: Float64Array;
}

/** An answer as it is drawn. */
export function counterTileOf(axis: Axis, wire: Wire): CounterTile {
  const { zoom, tile, exact } = wire;
  const { from, to } = rangeOf(axis, wire);
  return {
    zoom,
    tile,
    exact,
    to,
    start: Float64Array.from(wire.start_ns, (ns) => ns + from),
    least: Float64Array.from(wire.least),
    most: Float64Array.from(wire.most),
  };
}

/** The least and the most in each column of pixels, NaN where nothing is known. */
export interface Extremes {
  least: Float64Array;
  most: Float64Array;
}

/**
 * What a counter is in each of some columns of pixels: no value is lost, however many changes a
 * column holds. A share of time is its mean there.
 */
export function columnExtremes(
  pieces: readonly Piece<CounterTile>[],
  window: Span,
  columns: number,
  isShare: boolean,
): Extremes {
  const least = new Float64Array(columns).fill(NaN);
  const most = new Float64Array(columns).fill(NaN);
  const known = new Float64Array(columns);
  const scale = columns / (window.to - window.from);
  eachRun(pieces, window, (from, to, low, high) => {
    const [left, right] = [(from - window.from) * scale, (to - window.from) * scale];
    const last = Math.min(Math.max(Math.ceil(right) - 1, Math.floor(left)), columns - 1);
    for (let at = Math.floor(left); at <= last; at++) {
      if (!isShare) {
        if (!(least[at]! <= low)) least[at] = low;
        if (!(most[at]! >= high)) most[at] = high;
        continue;
      }
      const part = Math.min(right, at + 1) - Math.max(left, at);
      if (part <= 0) continue;
      const before = known[at]!;
      least[at] = ((before ? least[at]! * before : 0) + low * part) / (before + part);
      known[at] = before + part;
    }
  });
  return { least, most: isShare ? least : most };
}

/** Calls back with each run in a window, cut at its edges. */
function eachRun(
  pieces: readonly Piece<CounterTile>[],
  window: Span,
  run: (from: number, to: number, least: number, most: number) => void,
): void {
  for (const { tile, from, to } of pieces) {
    const [begin, end] = [Math.max(from, window.from), Math.min(to, window.to)];
    for (let i = 0; i < tile.start.length; i++) {
      const [first, last] = [tile.start[i]!, tile.start[i + 1] ?? tile.to];
      if (first >= end) break;
      if (last < begin || (last === begin && first < begin)) continue;
      run(Math.max(first, begin), Math.min(last, end), tile.least[i]!, tile.most[i]!);
    }
  }
}

/** The values at the bottom and at the top of a counter's lane. */
export function scaleOf({ least, most }: CounterRow): Span {
  if (least >= 0 && most - least >= FLAT * most) return { from: 0, to: most || 1 };
  if (least < most) return { from: least, to: most };
  return { from: Math.min(least, 0), to: Math.max(most, 0) || 1 };
}

/** A value in its unit; some thousands of one without a unit stay readable. */
export function counterText(value: number, unit: string): string {
  if (unit === "share") return percent(value);
  return unit === "bytes" ? `${value < 0 ? "−" : ""}${bytes(Math.abs(value))}` : significant(value);
}

/** `1.2 GB`, or `1.2 GB to 3.4 GB`. */
export function rangeText(least: number, most: number, unit: string): string {
  const [low, high] = [counterText(least, unit), counterText(most, unit)];
  return low === high ? low : `${low} to ${high}`;
}

/** The counters that are listed: the first of the rank, or all. */
export function listedCounters(axis: Axis, { rank, every }: Listing): CounterRow[] {
  return every ? axis.counters : axis.counters.filter((one) => one.rank === rank).slice(0, FEW);
}
