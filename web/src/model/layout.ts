import { duration } from "../base/format";
import { placeLabels, type Label, type Wanted } from "./labels";
import type { Level, Row } from "./level";

/** Where the rows of a level stand, in CSS pixels; x is time fitted to the width. */
export interface Layout {
  width: number;
  height: number;
  scale: number;
  rows: PlacedRow[];
}

export interface PlacedRow {
  row: Row;
  top: number;
  labels: Label[];
}

export const BAR_HEIGHT = 26;
export const LANE_HEIGHT = 15;
const ROW_GAP = 5;
const LANES = 2;
/** Bars that may have a name below: enough to tell what matters, few enough to read. */
const NAMED_BELOW = 14;
const NAMED = 300;
/** Narrower bars have no name inside. */
const NARROWEST_PX = 14;

export interface LayoutOptions {
  width: number;
  measure: (text: string) => number;
  /** Operations to be named first: the chosen one, and hits of a search. */
  first?: (operation: number) => boolean;
  /** What stands behind a name instead of the time: how much a search found. */
  note?: (operation: number) => string;
}

/** Lays a level out for a width; called again whenever the width changes. */
export function layOut(level: Level, options: LayoutOptions): Layout {
  const scale = options.width / level.length;
  let top = 0;
  const rows = level.rows.map((row) => {
    const labels = nameRow(row, scale, options);
    const placed = { row, top, labels };
    const lanes = labels.reduce((most, one) => Math.max(most, one.lane), 0);
    top += BAR_HEIGHT + lanes * LANE_HEIGHT + ROW_GAP;
    return placed;
  });
  return { width: options.width, height: Math.max(top - ROW_GAP, BAR_HEIGHT), scale, rows };
}

function nameRow(row: Row, scale: number, options: LayoutOptions): Label[] {
  const first = options.first ?? (() => false);
  const bars = longestBars(row, scale, first);
  const wanted = bars.map((bar, at): Wanted => {
    const from = row.start[bar]! * scale;
    const to = row.end[bar]! * scale;
    const ahead = first(row.operation[bar]!);
    const below = ahead || at < NAMED_BELOW;
    const weight = row.busy[bar]! + (ahead ? 1e18 : 0);
    return { bar, from, to, texts: textsOf(row, bar, options), weight, below };
  });
  return placeLabels(wanted, { width: options.width, lanes: LANES, measure: options.measure });
}

/** The bars that may be named, longest first; of many only so many are looked at. */
function longestBars(row: Row, scale: number, first: (operation: number) => boolean): number[] {
  const all = Array.from(row.busy.keys());
  const some = all.filter(
    (bar) =>
      (row.end[bar]! - row.start[bar]!) * scale >= NARROWEST_PX || first(row.operation[bar]!),
  );
  const enough = some.length >= NAMED_BELOW || row.busy.length > 5000 ? some : all;
  return enough.sort((a, b) => row.busy[b]! - row.busy[a]!).slice(0, NAMED);
}

function textsOf(row: Row, bar: number, options: LayoutOptions): string[] {
  const name = row.names[bar]!;
  const note = options.note?.(row.operation[bar]!) || duration(row.busy[bar]!);
  return [`${name}  ${note}`, name];
}

/** The operation below a point of the layout, with the bar that was met; null where none is. */
export interface Met {
  row: number;
  bar: number;
  operation: number;
}

export function rowAt(layout: Layout, y: number): number {
  return layout.rows.findIndex((one) => y >= one.top && y < one.top + BAR_HEIGHT);
}

/** A label below its bar at a point, as its operation can be clicked there as well. */
export function labelAt(layout: Layout, x: number, y: number): Met | null {
  for (const [row, placed] of layout.rows.entries()) {
    const lane = Math.floor((y - placed.top - BAR_HEIGHT) / LANE_HEIGHT) + 1;
    const found = placed.labels.find(
      (one) => one.lane === lane && lane > 0 && x >= one.left && x <= one.left + one.width,
    );
    if (found) return { row, bar: found.bar, operation: placed.row.operation[found.bar]! };
  }
  return null;
}
