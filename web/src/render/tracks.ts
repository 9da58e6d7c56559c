import { hueOfStage, type Palette, type Rgb } from "./palette";
import type { Span } from "../model/span";
import type { Piece, Tile } from "../model/tiles";
import { causeName } from "../base/causes";
import { words } from "../base/format";
import { fittingName } from "../base/names";
import { drawnBy } from "./redraw";
import { fitted, FONT_SMALL } from "./fitted";

/** Height of a line of slices, px, and of what is drawn of it. */
export const LINE_PX = 16;
const DRAWN_PX = 15;
/** Slices are as intense as this, of 16; a bin by how much of it is covered. */
const INTENSITY = 11;
const LABEL_PX = 26;
const PAD = 4;
/** A bin that anything touches is at least this opaque. */
const FAINTEST = 0.3;
/** So opaque are bins, and slices that a search did not find. */
const FAINT = 0.3;

export interface TrackScene {
  pieces: readonly Piece[];
  window: Span;
  width: number;
  /** Lines that are drawn; where there is one, deeper slices are drawn over those around them. */
  lines: number;
  palette: Palette;
  kind: string;
  /** The event that is chosen, -1 for none. */
  chosen: number;
  /** Whether a search found slices of a name: the others are faint. Null without a search. */
  isHit: ((name: string) => boolean) | null;
  measure: (text: string) => number;
}

/** Draws the tiles of one track: bins as an image, slices of a pixel and more one by one. */
export function drawTrack(canvas: HTMLCanvasElement, scene: TrackScene): void {
  drawnBy(canvas, (other) => drawTrack(other, scene));
  const [width, height] = [scene.width, scene.lines * LINE_PX];
  const context = fitted(canvas, width, height, { alpha: false });
  context.fillStyle = scene.palette.rowBackground;
  context.fillRect(0, 0, width, height);
  context.font = FONT_SMALL;
  context.textBaseline = "middle";
  drawBins(context, scene, canvas.width);
  const slices = scene.pieces.flatMap((piece) =>
    piece.tile.lines.flatMap((_, depth) => slicesOf(scene, piece, depth)),
  );
  slices.forEach((slice) => drawSlice(context, scene, slice));
  const labeled = slices.filter((slice) => slice.size >= LABEL_PX);
  const isCovered = coverOf(scene, slices);
  const taken = new Map<number, Taken>();
  for (const slice of labeled.sort((a, b) => b.size - a.size)) {
    const row = taken.get(slice.top) ?? [];
    taken.set(slice.top, row);
    drawLabel(context, scene, slice, isCovered, row);
  }
}

/** Where labels of one row stand: slices that cross share a row, and the longest has its label. */
type Taken = [from: number, to: number][];
type Cover = (depth: number, from: number, to: number) => boolean;

/** Whether a deeper slice is drawn over a part of a line, which happens on closed tracks alone. */
function coverOf(scene: TrackScene, slices: readonly Drawn[]): Cover {
  if (slices.every(({ depth }) => depth < scene.lines)) return () => false;
  const deepest = new Uint16Array(Math.ceil(scene.width) + 1);
  for (const { depth, from, size } of slices)
    for (let x = Math.floor(from); x < from + size; x++) deepest[x] = Math.max(deepest[x]!, depth);
  return (depth, from, to) => {
    for (let x = Math.floor(from); x < to; x++) if (deepest[x]! > depth) return true;
    return false;
  };
}

/** Each canvas has a strip of its own: one that was just drawn from is copied before it changes. */
const strips = new WeakMap<HTMLCanvasElement, HTMLCanvasElement>();

/** A strip with room for some pixels. */
function stripOf(canvas: HTMLCanvasElement, { width, height }: ImageData): HTMLCanvasElement {
  const known = strips.get(canvas);
  if (known && known.width >= width && known.height >= height) return known;
  const strip = Object.assign(document.createElement("canvas"), { width, height });
  strips.set(canvas, strip);
  return strip;
}

/** One pixel of height for each line, drawn as tall as it. */
function drawBins(context: CanvasRenderingContext2D, scene: TrackScene, wide: number): void {
  if (!scene.pieces.some(({ tile }) => !tile.exact)) return;
  const pixels = new ImageData(wide, scene.lines);
  const scale = wide / (scene.window.to - scene.window.from);
  for (const { tile, from: least, to: most } of scene.pieces) {
    const size = tile.bin;
    tile.lines.forEach((line, depth) => {
      const row = Math.min(depth, scene.lines - 1) * wide;
      for (let i = 0; i < line.bin.length; i++) {
        const time = tile.from + line.bin[i]! * size;
        if (time + size <= least || time >= most) continue;
        const at = (time - scene.window.from) * scale;
        const color = hueOfStage(scene.palette, line.binStage[i]!).rgb[INTENSITY]!;
        const from = Math.max(Math.floor(at), 0);
        const to = Math.min(Math.max(Math.floor(at + size * scale), from + 1), wide);
        const cover = Math.max(line.percent[i]! / 100, FAINTEST) * (scene.isHit ? FAINT : 1);
        for (let x = from; x < to; x++) paint(pixels.data, (row + x) * 4, color, cover);
      }
    });
  }
  const strip = stripOf(context.canvas, pixels);
  const drawn = strip.getContext("2d")!;
  drawn.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  for (let line = 0; line < scene.lines; line++) {
    context.drawImage(strip, 0, line, wide, 1, 0, line * LINE_PX, scene.width, DRAWN_PX);
  }
}

function paint(data: Uint8ClampedArray, at: number, [red, green, blue]: Rgb, cover: number): void {
  data[at] = red;
  data[at + 1] = green;
  data[at + 2] = blue;
  data[at + 3] = Math.max(data[at + 3]!, 255 * cover);
}

/** The slices of one depth in a piece that are to be drawn. */
function slicesOf(scene: TrackScene, piece: Piece, depth: number): Drawn[] {
  const { tile } = piece;
  const found: Drawn[] = [];
  const line = tile.lines[depth]!;
  const { window, width } = scene;
  const scale = width / (window.to - window.from);
  const top = Math.min(depth, scene.lines - 1) * LINE_PX;
  // A slice may lie in several tiles: the one where its visible part begins draws it.
  const first = window.from >= piece.from ? -Infinity : piece.from;
  const last = Math.min(piece.to, window.to);
  let drawn = -Infinity;
  for (let i = 0; i < line.start.length; i++) {
    const [start, end] = [line.start[i]!, line.end[i]!];
    if (start >= last) break;
    if (start < first || end < window.from) continue;
    const from = Math.max((start - window.from) * scale, 0);
    const to = Math.min((end - window.from) * scale, width);
    if (to - from < 1 && to - drawn < 0.7) continue; // in a pixel drawn before
    drawn = to;
    const size = Math.max(to - from - (to - from > 3 ? 0.75 : 0), 0.8);
    found.push({ line, i, tile, depth, from, top, size });
  }
  return found;
}

interface Drawn {
  line: Tile["lines"][number];
  i: number;
  tile: Tile;
  depth: number;
  from: number;
  top: number;
  size: number;
}

function isFaint({ isHit }: TrackScene, name: string): boolean {
  return isHit !== null && !isHit(name);
}

function drawSlice(context: CanvasRenderingContext2D, scene: TrackScene, slice: Drawn): void {
  const { line, i, from, top, size } = slice;
  const idle = scene.kind === "idle";
  const hue = hueOfStage(scene.palette, line.stage[i]!);
  const name = slice.tile.strings[line.name[i]!] ?? "";
  if (isFaint(scene, name)) {
    context.fillStyle = scene.palette.rowBackground; // bins may be below it, in some of its tiles
    context.fillRect(from, top, size, DRAWN_PX);
    context.globalAlpha = FAINT;
  }
  context.fillStyle = idle ? hatch(context, scene.palette, name) : hue.heat[INTENSITY]!;
  context.fillRect(from, top, size, DRAWN_PX);
  context.globalAlpha = 1;
  if (scene.chosen >= 0 && line.event[i] === scene.chosen) {
    context.strokeStyle = scene.palette.accent;
    context.lineWidth = 2;
    context.strokeRect(from + 1, top + 1, Math.max(size - 2, 1), DRAWN_PX - 2);
  }
}

function drawLabel(
  context: CanvasRenderingContext2D,
  scene: TrackScene,
  slice: Drawn,
  isCovered: Cover,
  taken: Taken,
): void {
  const { line, i, from, top, size, tile, depth } = slice;
  const idle = scene.kind === "idle";
  const name = tile.strings[line.name[i]!] ?? "";
  const own = idle ? causeName(name) : scene.kind === "stages" ? words(name) : name;
  const text = fittingName(own, size - 2 * PAD, scene.measure);
  const end = from + PAD + scene.measure(text);
  if (!text || isCovered(depth, from + PAD, end)) return;
  if (taken.some(([left, right]) => from + PAD < right && left < end)) return;
  taken.push([from + PAD, end]);
  if (idle) {
    context.fillStyle = scene.palette.rowBackground;
    context.fillRect(from + PAD - 2, top + 1, scene.measure(text) + 4, DRAWN_PX - 2);
  }
  const hue = hueOfStage(scene.palette, line.stage[i]!);
  context.fillStyle = idle || isFaint(scene, name) ? scene.palette.text : hue.on[INTENSITY]!;
  context.fillText(text, from + PAD, top + DRAWN_PX / 2 + 0.5);
}

/** How the lines of each cause run, in a tile of 6 px: so causes are told apart without a hue. */
const HATCHES: Record<string, readonly (readonly [number, number, number, number])[]> = {
  host: [[0, 6, 6, 0], [-3, 3, 3, -3], [3, 9, 9, 3]],
  launch: [[0, 0, 6, 6], [-3, 3, 3, 9], [3, -3, 9, 3]],
  synchronization: [[0, 6, 6, 0], [0, 0, 6, 6]],
  data: [[0, 3, 6, 3]],
  communication: [[3, 0, 3, 6]],
  one_off: [[0, 3, 6, 3], [3, 0, 3, 6]],
}; // prettier-ignore
const UNKNOWN = [[2.4, 3, 3.6, 3]] as const;

const patterns = new WeakMap<Palette, Map<string, CanvasPattern>>();

/** Lines by the cause of idle time: nothing runs. */
export function hatch(
  context: CanvasRenderingContext2D,
  palette: Palette,
  cause: string,
): CanvasPattern {
  const known = patterns.get(palette) ?? new Map<string, CanvasPattern>();
  patterns.set(palette, known);
  const kept = known.get(cause);
  if (kept) return kept;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const drawing = tile.getContext("2d")!;
  drawing.fillStyle = palette.rowBackground;
  drawing.fillRect(0, 0, 6, 6);
  drawing.strokeStyle = palette.line;
  drawing.lineWidth = 1.2;
  for (const [x, y, toX, toY] of HATCHES[cause] ?? UNKNOWN) {
    drawing.beginPath();
    drawing.moveTo(x, y);
    drawing.lineTo(toX, toY);
    drawing.stroke();
  }
  const made = context.createPattern(tile, "repeat")!;
  known.set(cause, made);
  return made;
}
