import { signal } from "@preact/signals";
import { grouped } from "../../base/format";
import { layOut, type Layout } from "../../model/layout";
import type { TrackRow } from "../../api/types";
import type { Level } from "../../model/level";
import type { Span } from "../../model/span";
import type { SliceHit } from "../../model/tiles";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import type { Scene } from "../../render/renderer";

/** Room on the left for the names of threads and streams, px; less where the page is narrow. */
export const gutter = signal(124);
const LEAST_GUTTER = 124;
const MOST_GUTTER = 176;
const MOST_GUTTER_SHARE = 0.16;
const NARROW_GUTTER = 76;
/** A page narrower than this has less room for names, px. */
const NARROW_PX = 640;
/** What a label needs besides its text: a twist before it, padding and gaps. */
const LABEL_RIM_PX = 30;

/** As much room for names as the longest needs, but no large part of the page. */
export function gutterFor(page: number, labels: readonly string[]): number {
  if (page < NARROW_PX) return NARROW_GUTTER;
  const measure = textMeasure(FONT_SMALL);
  const longest = labels.reduce((most, label) => Math.max(most, measure(label)), 0);
  const room = Math.min(longest + LABEL_RIM_PX, MOST_GUTTER, page * MOST_GUTTER_SHARE);
  return Math.round(Math.max(room, LEAST_GUTTER));
}

/** What the pointer is on, as the overlay and the tooltip need it. */
export interface Hover {
  level: Level;
  operation: number;
  x: number;
  y: number;
}

export const hover = signal<Hover | null>(null);

/** The slice of a track that the pointer is on. */
export interface HoveredSlice {
  hit: SliceHit;
  track: TrackRow;
  x: number;
  y: number;
}

export const hovered = signal<HoveredSlice | null>(null);

/** The time below the pointer, ns since the trace's start. */
export const pointerTime = signal<number | null>(null);

/** How much of the axis a pixel shows, ns, at about the width of the page. */
export function pixelNs({ from, to }: Span): number {
  return (to - from) / innerWidth;
}

/** Bumped when the screen's pixels change size: the window went to another screen, or was zoomed. */
export const pixelRatio = signal(typeof devicePixelRatio === "number" ? devicePixelRatio : 1);

export interface SceneParts {
  level: Level;
  width: number;
  /** The visible part of the axis. */
  from: number;
  to: number;
  /** The opened operation where the level is drawn as one strip. */
  strip: number | null;
  palette: Palette;
  hits: readonly number[] | null;
  searching: boolean;
  chosen: number;
}

/** A scene, and what it was made of. */
export interface Made {
  parts: SceneParts;
  scene: Scene;
}

/** The scene of some parts: the one before where none of them changed. */
export function made(before: Made | undefined, parts: SceneParts): Made {
  const keys = Object.keys(parts) as (keyof SceneParts)[];
  const same = before && keys.every((key) => before.parts[key] === parts[key]);
  return same ? before : { parts, scene: makeScene(parts) };
}

function makeScene(parts: SceneParts): Scene {
  const { level, hits, chosen, width } = parts;
  const window = { from: parts.from - level.start, to: parts.to - level.start };
  const measure = textMeasure();
  const first = (one: number): boolean =>
    one === chosen || (parts.searching && (hits?.[one] ?? 0) > 0);
  const note = (one: number): string =>
    parts.searching && hits?.[one] ? `${grouped(hits[one])} found` : "";
  return {
    layout: layOut(level, { width, window, strip: parts.strip, measure, first, note }),
    window,
    palette: parts.palette,
    hits,
    dims: parts.searching && hits !== null,
    boundByDevice: (one) => boundByDevice(level, one),
  };
}

/** Which side bounds an operation; null where it has one side only, so that nothing is to be said. */
function boundByDevice(level: Level, operation: number): boolean | null {
  const { cpu_ns, device_ns, bound_by } = level.wire.operations;
  if (!cpu_ns[operation] || !device_ns[operation]) return null;
  return level.wire.strings[bound_by[operation]!] === "device";
}

/** From where to where an operation reaches in a layout, over all its rows; null where it has none. */
export function extent(layout: Layout, operation: number, side?: "cpu" | "device"): Box | null {
  let box: Box | null = null;
  for (const { row, top } of layout.rows) {
    if (side && row.side !== side) continue;
    row.operation.forEach((one, bar) => {
      if (one !== operation) return;
      const [left, right] = [row.start[bar]!, row.end[bar]!].map(
        (ns) => (ns - layout.from) * layout.scale,
      ) as [number, number];
      box = box
        ? {
            left: Math.min(box.left, left),
            right: Math.max(box.right, right),
            top: Math.min(box.top, top),
            bottom: Math.max(box.bottom, top),
          }
        : { left, right, top, bottom: top };
    });
    if (box && !side) return box; // the CPU side comes first, and stands for the operation
  }
  return box;
}

export interface Box {
  left: number;
  right: number;
  /** Top of the first row and of the last one. */
  top: number;
  bottom: number;
}
