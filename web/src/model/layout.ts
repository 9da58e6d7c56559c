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
/** Hits of a search that are named before all else. */
const NAMED_FIRST = 100;
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
  const bars = barsToName(row, scale, options.first);
  const wanted = bars.map((bar, at): Wanted => {
    const from = row.start[bar]! * scale;
    const to = seenUntil(row, bar) * scale;
    const ahead = options.first?.(row.operation[bar]!) ?? false;
    const below = ahead || at < NAMED_BELOW;
    const weight = row.busy[bar]! + (ahead ? 1e18 : 0);
    return { bar, from, to, texts: textsOf(row, bar, options), weight, below };
  });
  return placeLabels(wanted, { width: options.width, lanes: LANES, measure: options.measure });
}

/** The end of what is seen of a bar: the next one is drawn over it where they overlap. */
function seenUntil(row: Row, bar: number): number {
  const next = row.start[bar + 1] ?? Infinity;
  return next > row.start[bar]! ? Math.min(row.end[bar]!, next) : row.end[bar]!;
}

/** The bars that may be named: those to be named first, then the longest, if they are not narrow. */
function barsToName(row: Row, scale: number, first?: (operation: number) => boolean): number[] {
  const ahead: number[] = [];
  for (let bar = 0; first && bar < row.operation.length && ahead.length < NAMED_FIRST; bar++) {
    if (first(row.operation[bar]!)) ahead.push(bar);
  }
  const rest = row.longest.filter(
    (bar, at) => at < NAMED_BELOW || (row.end[bar]! - row.start[bar]!) * scale >= NARROWEST_PX,
  );
  return [...new Set([...ahead, ...rest])];
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
