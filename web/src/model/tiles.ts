import type { Axis, Slices } from "../api/types";
import type { Span } from "./span";

/** One part of the axis: at zoom 0 all of it, at each further zoom half of the one before. */
export interface TileKey {
  zoom: number;
  tile: number;
}

/** The slices of one nesting depth in a tile, by start; times are ns since the trace's start. */
export interface Line {
  start: Float64Array;
  end: Float64Array;
  event: Int32Array;
  name: Int32Array;
  stage: Int8Array;
  /** Bins that are partly covered: number, percent, stage. */
  bin: Int32Array;
  percent: Uint8Array;
  binStage: Int8Array;
}

/** What a tile shows of a track, as it is drawn. */
export interface Tile extends TileKey {
  from: number;
  to: number;
  exact: boolean;
  /** Length of a bin. */
  bin: number;
  lines: Line[];
  strings: string[];
}

/** A part of the axis that a tile shows, which may reach beyond it. */
export interface Piece<T = Tile> extends Span {
  tile: T;
}

/** Bins should be no wider than this, px of the screen. */
const BIN_PX = 1.5;

/** How tiles divide a time axis. */
export type TileScale = Pick<Axis, "end_ns" | "tile_ns" | "deepest" | "bins">;

/** The tiles that a window shows, at the zoom at which a bin is about a pixel. */
export function tilesOf(axis: TileScale, window: Span, pixels: number): TileKey[] {
  const length = Math.max(window.to - window.from, 1);
  const wanted = Math.log2((axis.tile_ns / axis.bins / (length / pixels)) * (1 / BIN_PX));
  const zoom = Math.min(Math.max(Math.ceil(wanted), 0), axis.deepest);
  const size = axis.tile_ns / 2 ** zoom;
  const first = Math.max(Math.floor(window.from / size), 0);
  const last = Math.min(Math.ceil(Math.min(window.to, axis.end_ns) / size), 2 ** zoom) - 1;
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => ({
    zoom,
    tile: first + i,
  }));
}

/** The tile around a tile, null for the whole axis. */
export function around({ zoom, tile }: TileKey): TileKey | null {
  return zoom > 0 ? { zoom: zoom - 1, tile: Math.floor(tile / 2) } : null;
}

/** An answer as it is drawn. */
export function tileOf(axis: Axis, wire: Slices): Tile {
  const size = axis.tile_ns / 2 ** wire.zoom;
  const from = wire.tile * size;
  const { slices, bins } = wire;
  const depths = Math.max(-1, ...slices.depth.slice(-1), ...bins.depth.slice(-1)) + 1;
  const lines = Array.from({ length: depths }, (_, depth) => {
    const [first, last] = part(slices.depth, depth);
    const [bin, binEnd] = part(bins.depth, depth);
    const start = Float64Array.from(slices.start_ns.slice(first, last), (ns) => ns + from);
    const duration = slices.duration_ns.slice(first, last);
    return {
      start,
      end: start.map((ns, i) => ns + duration[i]!),
      event: Int32Array.from(slices.event.slice(first, last)),
      name: Int32Array.from(slices.name.slice(first, last)),
      stage: Int8Array.from(slices.stage.slice(first, last)),
      bin: Int32Array.from(bins.bin.slice(bin, binEnd)),
      percent: Uint8Array.from(bins.percent.slice(bin, binEnd)),
      binStage: Int8Array.from(bins.stage.slice(bin, binEnd)),
    };
  });
  return {
    zoom: wire.zoom,
    tile: wire.tile,
    from,
    to: from + size,
    exact: wire.exact,
    bin: size / axis.bins,
    lines,
    strings: wire.strings,
  };
}

/** From where to where a sorted column has a value. */
function part(column: readonly number[], value: number): [from: number, to: number] {
  return [lowest(column, value), lowest(column, value + 1)];
}

function lowest(column: readonly number[], value: number): number {
  let [low, high] = [0, column.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (column[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The depth of an event in a tile and its number there, undefined where the tile does not show it. */
export function eventIn(tile: Tile, event: number): [depth: number, at: number] | undefined {
  for (const [depth, line] of tile.lines.entries()) {
    const at = line.event.indexOf(event);
    if (at >= 0) return [depth, at];
  }
  return undefined;
}

/** From where to where a tile reaches. */
export function rangeOf(axis: TileScale, { zoom, tile }: TileKey): Span {
  const size = axis.tile_ns / 2 ** zoom;
  return { from: tile * size, to: (tile + 1) * size };
}

/** A slice that was met on a track. */
export interface SliceHit {
  name: string;
  start: number;
  end: number;
  event: number;
  stage: number;
}

/** The slice of a line at a time, else the nearest within `slack` ns; null where only bins are. */
export function sliceAt(
  pieces: readonly Piece[],
  depth: number,
  time: number,
  slack: number,
): SliceHit | null {
  let best: SliceHit | null = null;
  let bestMiss = slack;
  for (const { tile, from, to } of pieces) {
    const line = tile.lines[depth];
    if (!line || time < from - slack || time > to + slack) continue;
    for (let i = 0; i < line.start.length; i++) {
      const [start, end] = [line.start[i]!, line.end[i]!];
      if (start > time + slack) break;
      const miss = Math.max(start - time, time - end, 0);
      if (miss > bestMiss || (best && miss === bestMiss && end - start > best.end - best.start))
        continue;
      bestMiss = miss;
      const [event, stage] = [line.event[i]!, line.stage[i]!];
      best = { name: tile.strings[line.name[i]!] ?? "", start, end, event, stage };
    }
  }
  return best;
}
