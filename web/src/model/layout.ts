import { duration } from "../base/format";
import { placeLabels, type Label, type Wanted } from "./labels";
import { busyShare, type Level, type Row } from "./level";
import type { Span } from "./span";

/** Where the rows of a level stand, in CSS pixels. */
export interface Layout {
  width: number;
  height: number;
  /** The time at the left edge, ns since the level's start, and pixels a nanosecond. */
  from: number;
  scale: number;
  /** Whether it is one strip without names of rows: the level is not the lowest. */
  strip: boolean;
  /** The operation whose inside is the next level, -1 for none. */
  opened: number;
  /** Height of a bar. */
  bar: number;
  rows: PlacedRow[];
}

export interface PlacedRow {
  row: Row;
  top: number;
  labels: Label[];
}

export const BAR_HEIGHT = 24;
/** Of a level that is not the lowest. */
export const STRIP_HEIGHT = 17;
export const LANE_HEIGHT = 15;
const ROW_GAP = 5;
const LANES = 2;
/** Bars that may have a name below: enough to tell what matters, few enough to read. */
const NAMED_BELOW = 14;
/** Hits of a search that are named before all else. */
const NAMED_FIRST = 100;
/** So many letters of a name are enough where all of it has no room; shorter ones are never cut. */
const ENOUGH_LETTERS = 40;
const LONG_LETTERS = 100;
/** Narrower bars have no name inside. */
const NARROWEST_PX = 14;

export interface LayoutOptions {
  width: number;
  /** What of it is visible, ns since the level's start. */
  window: Span;
  /** The operation that is opened, where the level is to be one strip that shows it. */
  strip: number | null;
  measure: (text: string) => number;
  /** Operations to be named first: the chosen one, and hits of a search. */
  first?: (operation: number) => boolean;
  /** What stands behind a name instead of the time: how much a search found. */
  note?: (operation: number) => string;
}

/** Lays a level out; called again whenever the width or what is visible changes. */
export function layOut(level: Level, options: LayoutOptions): Layout {
  const { width, window, strip } = options;
  const bar = strip === null ? BAR_HEIGHT : STRIP_HEIGHT;
  const scale = width / Math.max(window.to - window.from, 1);
  let top = 0;
  const rows = (strip === null ? level.rows : oneRow(level, strip)).map((row) => {
    const labels = nameRow(row, scale, options);
    const placed = { row, top, labels };
    const lanes = labels.reduce((most, one) => Math.max(most, one.lane), 0);
    top += bar + lanes * LANE_HEIGHT + ROW_GAP;
    return placed;
  });
  const height = Math.max(top - ROW_GAP, bar);
  const opened = strip ?? -1;
  return { width, height, from: window.from, scale, strip: strip !== null, opened, bar, rows };
}

/** The row that shows the opened operation, the first where none does. */
function oneRow(level: Level, opened: number): Row[] {
  const row = level.rows.find((one) => one.operation.includes(opened)) ?? level.rows[0];
  return row ? [row] : [];
}

function nameRow(row: Row, scale: number, options: LayoutOptions): Label[] {
  const bars = barsToName(row, scale, options);
  const at0 = options.window.from;
  const wanted = bars.map((bar, at): Wanted => {
    const from = (row.start[bar]! - at0) * scale;
    const to = (seenUntil(row, bar) - at0) * scale;
    const ahead = options.first?.(row.operation[bar]!) ?? false;
    const below = options.strip === null && (ahead || at < NAMED_BELOW);
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

/**
 * The bars that may be named: those to be named first, then the longest, if they are not narrow.
 * Of those in sight, and where few of the longest are in sight of all there.
 */
function barsToName(row: Row, scale: number, { first, window }: LayoutOptions): number[] {
  const inSight = (bar: number): boolean =>
    row.end[bar]! >= window.from && row.start[bar]! <= window.to;
  const ahead: number[] = [];
  for (let bar = 0; first && bar < row.operation.length && ahead.length < NAMED_FIRST; bar++) {
    if (first(row.operation[bar]!) && inSight(bar)) ahead.push(bar);
  }
  let longest = row.longest.filter(inSight);
  if (longest.length < NAMED_BELOW && row.longest.length < row.start.length) {
    const seen = [...row.start.keys()].filter(inSight);
    longest = seen.sort((a, b) => row.busy[b]! - row.busy[a]!).slice(0, NAMED_FIRST);
  }
  const rest = longest.filter(
    (bar, at) => at < NAMED_BELOW || (row.end[bar]! - row.start[bar]!) * scale >= NARROWEST_PX,
  );
  return [...new Set([...ahead, ...rest])];
}

function textsOf(row: Row, bar: number, options: LayoutOptions): string[] {
  const name = row.names[bar]!;
  const note = options.note?.(row.operation[bar]!);
  const times = timesOf(row, bar);
  const notes = note ? [...times.map((one) => `${one} · ${note}`), ...times] : times;
  const short = name.length > LONG_LETTERS ? [`${name.slice(0, ENOUGH_LETTERS)}…`] : [];
  return [...notes.map((one) => `${name}  ${one}`), name, ...short];
}

/** `9.57 ms`; where it is busy for a part of its span both, as the bar is drawn. */
function timesOf(row: Row, bar: number): string[] {
  const busy = duration(row.busy[bar]!);
  if (busyShare(row, bar) === 1) return [busy];
  const span = duration(row.end[bar]! - row.start[bar]!);
  return [`busy ${busy} of ${span}`, `busy ${busy}`];
}

/** The operation below a point of the layout, with the bar that was met; null where none is. */
export interface Met {
  row: number;
  bar: number;
  operation: number;
}

export function rowAt(layout: Layout, y: number): number {
  return layout.rows.findIndex((one) => y >= one.top && y < one.top + layout.bar);
}

/** A label below its bar at a point, as its operation can be clicked there as well. */
export function labelAt(layout: Layout, x: number, y: number): Met | null {
  for (const [row, placed] of layout.rows.entries()) {
    const lane = Math.floor((y - placed.top - layout.bar) / LANE_HEIGHT) + 1;
    const found = placed.labels.find(
      (one) => one.lane === lane && lane > 0 && x >= one.left && x <= one.left + one.width,
    );
    if (found) return { row, bar: found.bar, operation: placed.row.operation[found.bar]! };
  }
  return null;
}
