import type { MemoryTile as Wire } from "../api/types";
import type { Span } from "./span";
import { rangeOf, type Piece, type TileKey, type TileScale } from "./tiles";

/** What a tile shows of memory, as it is drawn; times are ns since the trace's start. */
export interface MemoryTile extends TileKey {
  exact: boolean;
  to: number;
  start: Float64Array;
  least: Float64Array;
  /** Bytes of each group. */
  held: Float64Array[];
  /** Bytes of all groups. */
  most: Float64Array;
  reservedSince: Float64Array;
  reserved: Float64Array;
}

/** An answer as it is drawn. */
export function memoryTileOf(scale: TileScale, wire: Wire): MemoryTile {
  const { zoom, tile, exact } = wire;
  const { from, to } = rangeOf(scale, wire);
  const held = wire.held.map((bytes) => Float64Array.from(bytes));
  const most = new Float64Array(wire.start_ns.length);
  for (const bytes of held) for (let at = 0; at < most.length; at++) most[at]! += bytes[at]!;
  return {
    zoom,
    tile,
    exact,
    to,
    start: Float64Array.from(wire.start_ns, (ns) => ns + from),
    least: Float64Array.from(wire.least),
    held,
    most,
    reservedSince: Float64Array.from(wire.reserved_ns, (ns) => ns + from),
    reserved: Float64Array.from(wire.reserved),
  };
}

/** Memory in columns of pixels: each shows the moment of its maximum, NaN where nothing is known. */
export interface MemoryColumns {
  held: Float64Array[];
  most: Float64Array;
  least: Float64Array;
  reserved: Float64Array;
}

/** What memory is in each of some columns of pixels; no peak is lost. */
export function memoryColumns(
  pieces: readonly Piece<MemoryTile>[],
  window: Span,
  groups: number,
  columns: number,
): MemoryColumns {
  const unknown = (): Float64Array => new Float64Array(columns).fill(NaN);
  const found: MemoryColumns = {
    held: Array.from({ length: groups }, unknown),
    most: unknown(),
    least: unknown(),
    reserved: unknown(),
  };
  const scale = columns / (window.to - window.from);
  for (const { tile, from, to } of pieces) {
    const part = { from: Math.max(from, window.from), to: Math.min(to, window.to) };
    eachRun(tile.start, tile.to, part, (run, begin, end) => {
      const last = lastColumn((end - window.from) * scale, columns);
      for (let at = Math.floor((begin - window.from) * scale); at <= last; at++) {
        if (!(found.least[at]! <= tile.least[run]!)) found.least[at] = tile.least[run]!;
        if (found.most[at]! >= tile.most[run]!) continue;
        found.most[at] = tile.most[run]!;
        for (let group = 0; group < groups; group++)
          found.held[group]![at] = tile.held[group]![run]!;
      }
    });
    eachRun(tile.reservedSince, tile.to, part, (run, begin, end) => {
      const last = lastColumn((end - window.from) * scale, columns);
      for (let at = Math.floor((begin - window.from) * scale); at <= last; at++)
        if (!(found.reserved[at]! >= tile.reserved[run]!)) found.reserved[at] = tile.reserved[run]!;
    });
  }
  return found;
}

function lastColumn(right: number, columns: number): number {
  return Math.min(Math.ceil(right) - 1, columns - 1);
}

/** Calls back with each run in a part of the axis, cut at its edges. */
function eachRun(
  starts: Float64Array,
  to: number,
  part: Span,
  run: (at: number, from: number, to: number) => void,
): void {
  for (let at = 0; at < starts.length; at++) {
    const [first, last] = [starts[at]!, starts[at + 1] ?? to];
    if (first >= part.to) break;
    if (last > part.from) run(at, Math.max(first, part.from), Math.min(last, part.to));
  }
}

/** A kind has the color of the stage that makes it; the rest what can be told apart from these. */
const COLORS: Record<string, string> = {
  weights: "stage-other",
  buffers: "stage-zero_grad",
  "optimizer state": "stage-optimizer",
  gradients: "stage-backward",
  activations: "stage-forward",
  inputs: "stage-data_loading",
  temporaries: "stage-loss",
  unknown: "stage-none",
};

/** The name of the style sheet's color of a group; the one that stands out has a kind's or its own. */
export function memoryColor(
  by: string,
  name: string,
  position: number,
  standsOut: number | null = null,
): string {
  if (by === "kind") return COLORS[name] ?? "stage-none";
  return position === standsOut ? "accent" : `shade-${5 - ((position * 2) % 5)}`;
}

/** The kinds from the bottom of the stack to its top: what lasts longest lies lowest. */
export const STACKING = [
  "weights", "buffers", "optimizer state", "gradients", "activations", "inputs", "temporaries",
  "unknown",
]; // prettier-ignore

/** The positions of groups from the bottom of the stack to its top. */
export function stackingOf(by: string, names: readonly string[]): number[] {
  const order = names.map((_, position) => position);
  if (by !== "kind") return order;
  return order.sort((a, b) => STACKING.indexOf(names[a]!) - STACKING.indexOf(names[b]!));
}

/** `model.py:39 forward` of a path: its end says most. */
export function shortLine(line: string): string {
  return line.split(/[\\/]/).slice(-2).join("/");
}
