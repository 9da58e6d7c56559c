import type { Span } from "../model/span";
import type { Piece } from "../model/tiles";
import { fitted } from "./fitted";
import { hueOfStage, type Palette } from "./palette";
import { drawnBy } from "./redraw";
import { hatch } from "./tracks";

const INTENSITY = 11;
/** Rows of a few ranks are so tall, px; those of many share what there is. */
export const ROW_PX = 10;
const MOST_PX = 80;
/** The rank to look at first has a mark at its start, px. */
const MARK_PX = 6;
/** More rows than this would be thinner than a pixel. */
export const MOST_ROWS = 128;

/** A rank's stages, and when its devices do nothing. */
export interface RankRow {
  rank: number;
  stages: readonly Piece[];
  idle: readonly Piece[];
}

export interface RankScene {
  rows: readonly RankRow[];
  window: Span;
  width: number;
  palette: Palette;
  /** The rank on screen, and the one that slows the job; -1 for none. */
  open: number;
  slowest: number;
}

export function mapHeight(ranks: number): number {
  return Math.min(ranks * ROW_PX, MOST_PX);
}

/** Ranks by time: the stages of each in their hues, hatched where it waits for others. */
export function drawRanks(canvas: HTMLCanvasElement, scene: RankScene): void {
  drawnBy(canvas, (other) => drawRanks(other, scene));
  const { rows, width, palette } = scene;
  const height = mapHeight(rows.length);
  const context = fitted(canvas, width, height, { alpha: false });
  context.fillStyle = palette.background;
  context.fillRect(0, 0, width, height);
  const tall = height / Math.max(rows.length, 1);
  rows.forEach((row, at) => {
    const [top, high] = [at * tall, Math.max(tall - (tall > 3 ? 1 : 0), 0.5)];
    context.fillStyle = palette.rowBackground;
    context.fillRect(0, top, width, high);
    for (const piece of row.stages) drawPiece(context, scene, piece, top, high);
    for (const piece of row.idle) drawWaiting(context, scene, piece, top, high);
    if (row.rank === scene.open) frame(context, palette.accent, top, width, tall);
    if (row.rank === scene.slowest) {
      context.fillStyle = palette.more;
      context.fillRect(0, top, MARK_PX, tall);
    }
  });
}

function frame(context: CanvasRenderingContext2D, color: string, top: number, width: number, tall: number): void {
  context.strokeStyle = color;
  context.lineWidth = 2;
  context.strokeRect(1, top + 0.5, width - 2, Math.max(tall - 1.5, 1));
} // prettier-ignore

function drawPiece(context: CanvasRenderingContext2D, scene: RankScene, piece: Piece, top: number, high: number): void {
  const { window, width, palette } = scene;
  const [scale, line] = [width / (window.to - window.from), piece.tile.lines[0]];
  const fill = (from: number, to: number, stage: number): void => {
    const [left, right] = [Math.max(from, piece.from, window.from), Math.min(to, piece.to, window.to)];
    if (right <= left) return;
    context.fillStyle = hueOfStage(palette, stage).heat[INTENSITY]!;
    context.fillRect((left - window.from) * scale, top, Math.max((right - left) * scale, 0.7), high);
  };
  line?.bin.forEach((bin, i) => {
    const from = piece.tile.from + bin * piece.tile.bin;
    fill(from, from + piece.tile.bin, line.binStage[i]!);
  });
  line?.start.forEach((start, i) => fill(start, line.end[i]!, line.stage[i]!));
} // prettier-ignore

/** Exposed communication hatches the lower half of a row. */
function drawWaiting(context: CanvasRenderingContext2D, scene: RankScene, piece: Piece, top: number, high: number): void {
  const { window, width, palette } = scene;
  const [scale, line] = [width / (window.to - window.from), piece.tile.lines[0]];
  context.fillStyle = hatch(context, palette, "communication");
  line?.start.forEach((start, i) => {
    if (piece.tile.strings[line.name[i]!] !== "communication") return;
    const [left, right] = [Math.max(start, piece.from, window.from), Math.min(line.end[i]!, piece.to, window.to)];
    if (right > left) context.fillRect((left - window.from) * scale, top + high / 2, Math.max((right - left) * scale, 1), high / 2);
  });
} // prettier-ignore
