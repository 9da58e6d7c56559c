import { HEATS, type Row } from "./level";

/**
 * Level of detail: bars of a pixel and more are drawn one by one; thinner ones are added up in the
 * pixel columns that they touch, and a column takes the shade that covers most of it.
 */

/** A bar at least this wide, in device pixels, is drawn by itself. */
export const WIDE_PX = 1.5;
/** A column that anything touches is at least this opaque, so that a lone thin bar is seen. */
const FAINTEST = 0.35;
/** Shades with a mark (a hit of the search) are told apart from those without. */
export const SHADES = HEATS * 2;

export interface Columns {
  /** Bars drawn one by one. */
  wide: number[];
  /** For each column the shade that covers most of it, -1 for none. */
  shade: Int8Array;
  /** For each column how much of it is covered, 0 to 1. */
  cover: Float32Array;
}

/**
 * What a row of bars looks like in a number of pixel columns.
 *
 * @param length of the level, in nanoseconds, which is fitted to the width.
 * @param width in device pixels.
 * @param marked says which bars are marked, by their number in the row; none where it is null.
 */
export function columnsOf(
  row: Row,
  length: number,
  width: number,
  marked: ((bar: number) => boolean) | null = null,
): Columns {
  const scale = width / length;
  const wide: number[] = [];
  const sums = cleared(width * SHADES);
  let thin = false;
  for (let bar = 0; bar < row.start.length; bar++) {
    const from = row.start[bar]! * scale;
    const to = row.end[bar]! * scale;
    if (to - from >= WIDE_PX) {
      wide.push(bar);
      continue;
    }
    thin = true;
    const shade = row.heat[bar]! + (marked?.(bar) ? HEATS : 0);
    spread(sums, shade, Math.max(from, 0), Math.min(Math.max(to, from + 1e-5), width), width);
  }
  return { wide, ...(thin ? strongest(sums, width) : nothing(width)) };
}

/** Kept between rows and frames: making it anew for each is what the collector of garbage hears. */
let scratch = new Float32Array(0);

function cleared(size: number): Float32Array {
  if (scratch.length < size) scratch = new Float32Array(2 * size);
  return scratch.fill(0, 0, size);
}

function spread(sums: Float32Array, shade: number, from: number, to: number, width: number): void {
  const last = Math.min(Math.floor(to), width - 1);
  for (let column = Math.floor(from); column <= last; column++) {
    const part = Math.min(to, column + 1) - Math.max(from, column);
    if (part > 0) sums[column * SHADES + shade]! += part;
  }
}

function strongest(sums: Float32Array, width: number): { shade: Int8Array; cover: Float32Array } {
  const found = nothing(width);
  for (let column = 0; column < width; column++) {
    let total = 0;
    let best = 0;
    for (let shade = 0; shade < SHADES; shade++) {
      const part = sums[column * SHADES + shade]!;
      total += part;
      if (part > best) {
        best = part;
        found.shade[column] = shade;
      }
    }
    if (total > 0) found.cover[column] = Math.min(Math.max(total, FAINTEST), 1);
  }
  return found;
}

function nothing(width: number): { shade: Int8Array; cover: Float32Array } {
  return { shade: new Int8Array(width).fill(-1), cover: new Float32Array(width) };
}
