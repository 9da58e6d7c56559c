import type { Label } from "../model/labels";
import { LANE_HEIGHT, type PlacedRow } from "../model/layout";
import { busyShare, type Row } from "../model/level";
import { columnsOf, partsOf, type Columns } from "../model/lod";
import { FONT } from "./fitted";
import { hueOfStage } from "./palette";
import { drawnBy } from "./redraw";
import type { Highlight, Renderer, Scene } from "./renderer";

const BOUND_PX = 3;
/** How thick outlines are. */
const [OPENED_PX, CHOSEN_PX, HOVERED_PX] = [1.5, 2, 1.5];

const measures = new Map<string, (text: string) => number>();

/** The width of a text as it is drawn, kept for each font and text. */
export function textMeasure(font = FONT): (text: string) => number {
  let measure = measures.get(font);
  if (!measure) measures.set(font, (measure = newMeasure(font)));
  return measure;
}

function newMeasure(font: string): (text: string) => number {
  const context = document.createElement("canvas").getContext("2d")!;
  context.font = font;
  const known = new Map<string, number>();
  return (text) => {
    let width = known.get(text);
    if (width === undefined) {
      width = Math.ceil(context.measureText(text).width);
      if (known.size > 20_000) known.clear();
      known.set(text, width);
    }
    return width;
  };
}

/**
 * Draws on a canvas for bars and names and one above it for outlines.
 *
 * All sizes are CSS pixels; the canvases have a pixel for each of the screen. Bars thinner than a
 * pixel come from columns (`model/lod`), one image of a pixel's height drawn as tall as the row.
 */
export class CanvasRenderer implements Renderer {
  private readonly base: CanvasRenderingContext2D;
  private readonly overlay: CanvasRenderingContext2D;
  private readonly strip = document.createElement("canvas");
  /** Whether anything is on the overlay: one that stays empty is not touched. */
  private outlined = false;

  constructor(base: HTMLCanvasElement, overlay: HTMLCanvasElement) {
    this.base = base.getContext("2d", { alpha: false })!;
    this.overlay = overlay.getContext("2d")!;
  }

  drawBase(scene: Scene): void {
    const { layout, palette } = scene;
    drawnBy(this.base.canvas, (other) => new CanvasRenderer(other, other).drawBase(scene));
    const context = fit(this.base, layout.width, layout.height);
    context.fillStyle = palette.background;
    // All of the canvas: then the browser keeps nothing of what was drawn before.
    context.fillRect(0, 0, context.canvas.width, context.canvas.height);
    for (const placed of layout.rows) {
      context.fillStyle = palette.rowBackground;
      context.fillRect(0, placed.top, layout.width, layout.bar);
      this.drawBars(context, scene, placed);
      for (const label of placed.labels) drawLabel(context, scene, placed, label);
      outlineAll(context, scene, placed, layout.opened, palette.accent, OPENED_PX);
    }
  }

  drawOverlay(scene: Scene, highlight: Highlight): void {
    const { layout, palette } = scene;
    drawnBy(this.overlay.canvas, (other) =>
      new CanvasRenderer(other, other).drawOverlay(scene, { ...highlight, hovered: -1 }),
    );
    const chosen = highlight.chosen === layout.opened ? -1 : highlight.chosen; // has its outline
    const any = Math.max(chosen, highlight.hovered) >= 0;
    if (!any && !this.outlined) return;
    this.outlined = any;
    const context = fit(this.overlay, layout.width, layout.height);
    const { width, height } = context.canvas;
    context.clearRect(0, 0, width, height);
    for (const placed of layout.rows) {
      outlineAll(context, scene, placed, chosen, palette.accent, CHOSEN_PX);
      outlineAll(context, scene, placed, highlight.hovered, palette.text, HOVERED_PX);
    }
  }

  private drawBars(context: CanvasRenderingContext2D, scene: Scene, placed: PlacedRow): void {
    const { row } = placed;
    const ratio = devicePixelRatio;
    const width = Math.max(Math.round(scene.layout.width * ratio), 1);
    const { hits } = scene;
    const isHit = hits ? (bar: number) => (hits[row.operation[bar]!] ?? 0) > 0 : null;
    const columns = columnsOf(row, scene.window, width, isHit);
    this.drawThin(context, scene, placed, columns, width);
    for (const bar of columns.wide) drawWide(context, scene, placed, bar);
  }

  private drawThin(
    context: CanvasRenderingContext2D,
    scene: Scene,
    placed: PlacedRow,
    columns: Columns,
    width: number,
  ): void {
    const pixels = stripPixels(columns, scene, width);
    if (!pixels) return;
    if (this.strip.width < width) Object.assign(this.strip, { width: roomy(width), height: 1 });
    this.strip.getContext("2d")!.putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    const { width: across, bar } = scene.layout;
    context.drawImage(this.strip, 0, 0, width, 1, 0, placed.top, across, bar);
  }
}

/** A canvas grows by so much at once, px; its height less, as each row more is memory to fill. */
const SPARE_PX = { across: 256, down: 64 };

function roomy(size: number, spare = SPARE_PX.across): number {
  return Math.ceil(size / spare) * spare;
}

/** The size that a canvas has, where it is large enough and not far too large. */
function sizeFor(needed: number, has: number, spare: number): number {
  const room = roomy(needed, spare);
  return has >= needed && has <= 2 * room ? has : room;
}

/**
 * Gives a canvas room for a size on screen, and a context that is scaled to CSS pixels.
 *
 * A canvas that gets another size gets another memory, which is what costs most while a window is
 * resized. So it is larger than what is drawn, and what is around it cuts it.
 */
function fit(context: CanvasRenderingContext2D, width: number, height: number) {
  const ratio = devicePixelRatio;
  const canvas = context.canvas;
  const wide = sizeFor(width * ratio, canvas.width, SPARE_PX.across);
  const tall = sizeFor(height * ratio, canvas.height, SPARE_PX.down);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== tall) canvas.height = tall;
  const [across, down] = [`${wide / ratio}px`, `${tall / ratio}px`];
  if (canvas.style.width !== across) canvas.style.width = across;
  if (canvas.style.height !== down) canvas.style.height = down;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = FONT;
  context.textBaseline = "middle";
  return context;
}

function stripPixels(columns: Columns, scene: Scene, width: number): ImageData | null {
  const { shade, cover } = columns;
  let pixels: ImageData | null = null;
  for (let column = 0; column < width; column++) {
    const code = shade[column]!;
    if (code < 0) continue;
    pixels ??= new ImageData(width, 1);
    const { stage, heat, marked } = partsOf(code);
    const [red, green, blue] = hueOfStage(scene.palette, stage).rgb[heat]!;
    pixels.data.set([red, green, blue, 255 * cover[column]! * faded(scene, marked)], column * 4);
  }
  return pixels;
}

/** Opacity of what a search did not find. */
function faded(scene: Scene, hit: boolean): number {
  return scene.dims && !hit ? 0.3 : 1;
}

function hitsOf(scene: Scene, row: Row, bar: number): number {
  return scene.hits?.[row.operation[bar]!] ?? 0;
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Where a bar is, at least a pixel wide, with a hair's breadth to the next where there is room. */
function boxOf(scene: Scene, placed: PlacedRow, bar: number): Box {
  const { scale, width: room, from, bar: height } = scene.layout;
  // What goes on past an edge is cut beyond it, so that its rounded corner is out of sight.
  const left = Math.max((placed.row.start[bar]! - from) * scale, -8);
  const right = Math.min((placed.row.end[bar]! - from) * scale, room + 8);
  const gap = right - left > 4 ? 1 : 0;
  return { left, top: placed.top, width: Math.max(right - left - gap, 1), height };
}

function drawWide(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  bar: number,
): void {
  const { palette } = scene;
  const { row } = placed;
  const { left, top, width, height } = boxOf(scene, placed, bar);
  const hit = hitsOf(scene, row, bar) > 0;
  context.globalAlpha = faded(scene, hit);
  fillBar(context, scene, placed, bar);
  if (hit) {
    context.fillStyle = palette.text;
    context.fillRect(left, top, width, BOUND_PX);
  }
  const bound = scene.boundByDevice(row.operation[bar]!);
  if (bound !== null && bound === (row.side === "device") && width > 6) {
    context.fillStyle = hueOfStage(palette, row.stage[bar]!).on[row.heat[bar]!]!;
    context.fillRect(left + 2, top + height - BOUND_PX, width - 4, BOUND_PX - 1);
  }
  context.globalAlpha = 1;
}

/** Busy time is solid, from the left; the rest of the span is an outline on a light ground. */
function fillBar(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  bar: number,
): void {
  const { row } = placed;
  const { left, top, width, height } = boxOf(scene, placed, bar);
  const share = busyShare(row, bar);
  context.fillStyle = hueOfStage(scene.palette, row.stage[bar]!).heat[row.heat[bar]!]!;
  if (width <= 6) return context.fillRect(left, top, width, height);
  context.beginPath();
  context.roundRect(left, top, width, height, 2.5);
  if (share === 1) return context.fill();
  const solid = context.fillStyle;
  context.save();
  context.clip();
  context.fillStyle = scene.palette.background;
  context.fillRect(left, top, width, height);
  context.fillStyle = solid;
  context.fillRect(left, top, width * share, height);
  context.restore();
  context.strokeStyle = scene.palette.line;
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(left + 0.5, top + 0.5, Math.max(width - 1, 1), height - 1, 2.5);
  context.stroke();
}

function drawLabel(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  label: Label,
): void {
  const { row } = placed;
  const hit = hitsOf(scene, row, label.bar) > 0;
  const height = scene.layout.bar;
  const middle = placed.top + height / 2;
  if (label.lane === 0) {
    context.globalAlpha = scene.dims && !hit ? 0.75 : 1;
    const own = hueOfStage(scene.palette, row.stage[label.bar]!).on[row.heat[label.bar]!]!;
    const solid = scene.dims && !hit ? scene.palette.text : own;
    drawInside(context, scene, placed, label, solid, middle);
    context.globalAlpha = 1;
    return;
  }
  const y = placed.top + height + (label.lane - 0.5) * LANE_HEIGHT + 1;
  context.fillStyle = scene.palette.line;
  const lineEnd = label.lane === 1 ? 3 : (label.lane - 1) * LANE_HEIGHT + 3;
  context.fillRect(Math.round(label.leader), placed.top + height, 1, lineEnd);
  context.fillStyle = hit && scene.dims ? scene.palette.text : scene.palette.dim;
  context.fillText(label.text, label.left, y);
}

/** A name in its bar: over the solid part and over the rest each in a color that can be read. */
function drawInside(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  label: Label,
  solid: string,
  middle: number,
): void {
  const { left, top, width, height } = boxOf(scene, placed, label.bar);
  const edge = left + width * busyShare(placed.row, label.bar);
  const parts = [
    [left, edge, solid],
    [edge, left + width + 1, scene.palette.text],
  ] as const;
  for (const [from, to, color] of parts) {
    if (label.left >= to || label.left + label.width <= from) continue;
    context.fillStyle = color;
    if (from <= label.left && label.left + label.width <= to) {
      context.fillText(label.text, label.left, middle);
      return;
    }
    context.save();
    context.beginPath();
    context.rect(from, top, to - from, height);
    context.clip();
    context.fillText(label.text, label.left, middle);
    context.restore();
  }
}

/** The outlines of all bars of an operation in a row; of none for -1. */
function outlineAll(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  operation: number,
  color: string,
  thick: number,
): void {
  if (operation < 0) return;
  placed.row.operation.forEach((one, bar) => {
    if (one === operation) outline(context, scene, placed, bar, color, thick);
  });
}

function outline(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  bar: number,
  color: string,
  thick: number,
): void {
  const { left, top, width, height } = boxOf(scene, placed, bar);
  context.strokeStyle = color;
  context.lineWidth = thick;
  context.beginPath();
  const inset = thick / 2;
  context.roundRect(
    left - 0.5 + inset,
    top + inset,
    Math.max(width + 1 - thick, 1),
    height - thick,
    2.5,
  );
  context.stroke();
}
