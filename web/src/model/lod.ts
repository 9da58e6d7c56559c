import { HEATS, type Row } from "./level";
import type { Span } from "./span";
import { STAGES } from "./stages";

/**
 * Level of detail: bars of a pixel and more are drawn one by one; thinner ones are added up in the
 * pixel columns that they touch, and a column takes the shade that covers most of it.
 */

/** A bar at least this wide, in device pixels, is drawn by itself. */
export const WIDE_PX = 1.5;
/** A column that anything touches is at least this opaque, so that a lone thin bar is seen. */
const FAINTEST = 0.35;
/** Heats of thin bars: fewer than of bars drawn one by one. */
export const THIN_HEATS = 4;
/** A shade is a stage or none, a heat, and whether it is marked (a hit of the search). */
export const SHADES = (STAGES.length + 1) * THIN_HEATS * 2;

export function shadeOf(stage: number, heat: number, marked: boolean): number {
  const coarse = Math.floor((heat * THIN_HEATS) / HEATS);
  return ((stage + 1) * THIN_HEATS + coarse) * 2 + Number(marked);
}

/** The stage, the heat and the mark of a shade. */
export function partsOf(shade: number): { stage: number; heat: number; marked: boolean } {
  const code = shade >> 1;
  const heat = Math.round((((code % THIN_HEATS) + 0.5) * HEATS) / THIN_HEATS);
  return { stage: Math.floor(code / THIN_HEATS) - 1, heat, marked: shade % 2 === 1 };
}

export interface Columns {
  /** Bars drawn one by one. */
  wide: number[];
  /** For each column the shade that covers most of it, -1 for none. */
  shade: Int16Array;
  /** For each column how much of it is covered, 0 to 1. */
  cover: Float32Array;
}

/**
 * What a row of bars looks like in a number of pixel columns.
 *
 * @param window what fills the width, ns since the level's start.
 * @param width in device pixels.
 * @param marked says which bars are marked, by their number in the row; none where it is null.
 */
export function columnsOf(
  row: Row,
  window: Span,
  width: number,
  marked: ((bar: number) => boolean) | null = null,
): Columns {
  const scale = width / Math.max(window.to - window.from, 1);
  const wide: number[] = [];
  const sums = cleared(width * SHADES);
  let thin = false;
  for (let bar = 0; bar < row.start.length; bar++) {
    const from = (row.start[bar]! - window.from) * scale;
    const to = (row.end[bar]! - window.from) * scale;
    if (from > width) break;
    if (to < 0) continue;
    if (to - from >= WIDE_PX) {
      wide.push(bar);
      continue;
    }
    thin = true;
    const shade = shadeOf(row.stage[bar]!, row.heat[bar]!, marked?.(bar) ?? false);
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

function strongest(sums: Float32Array, width: number): { shade: Int16Array; cover: Float32Array } {
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

function nothing(width: number): { shade: Int16Array; cover: Float32Array } {
  return { shade: new Int16Array(width).fill(-1), cover: new Float32Array(width) };
}
