import type { Label } from "../model/labels";
import { BAR_HEIGHT, LANE_HEIGHT, type PlacedRow } from "../model/layout";
import { HEATS, type Row } from "../model/level";
import { columnsOf, type Columns } from "../model/lod";
import { FONT } from "./fitted";
import type { Highlight, Renderer, Scene } from "./renderer";

const BOUND_PX = 3;

/** The width of a text as it is drawn, kept for each text. */
export function textMeasure(): (text: string) => number {
  const context = document.createElement("canvas").getContext("2d")!;
  context.font = FONT;
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
    const context = fit(this.base, layout.width, layout.height);
    context.fillStyle = palette.background;
    context.fillRect(0, 0, layout.width, layout.height);
    for (const placed of layout.rows) {
      context.fillStyle = palette.rowBackground;
      context.fillRect(0, placed.top, layout.width, BAR_HEIGHT);
      this.drawBars(context, scene, placed);
      for (const label of placed.labels) drawLabel(context, scene, placed, label);
    }
  }

  drawOverlay(scene: Scene, highlight: Highlight): void {
    const { layout, palette } = scene;
    const any = Math.max(highlight.opened, highlight.chosen, highlight.hovered) >= 0;
    if (!any && !this.outlined) return;
    this.outlined = any;
    const context = fit(this.overlay, layout.width, layout.height);
    const { width, height } = context.canvas;
    context.clearRect(0, 0, width, height);
    for (const placed of layout.rows) {
      const { row } = placed;
      for (let bar = 0; bar < row.operation.length; bar++) {
        const operation = row.operation[bar]!;
        if (operation === highlight.opened) drawOpened(context, scene, placed, bar);
        if (operation === highlight.chosen) outline(context, scene, placed, bar, palette.accent, 2);
        if (operation === highlight.hovered)
          outline(context, scene, placed, bar, palette.text, 1.5);
      }
    }
  }

  private drawBars(context: CanvasRenderingContext2D, scene: Scene, placed: PlacedRow): void {
    const { row } = placed;
    const ratio = devicePixelRatio;
    const width = Math.max(Math.round(scene.layout.width * ratio), 1);
    const { hits } = scene;
    const isHit = hits ? (bar: number) => (hits[row.operation[bar]!] ?? 0) > 0 : null;
    const columns = columnsOf(row, scene.length, width, isHit);
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
    context.drawImage(this.strip, 0, 0, width, 1, 0, placed.top, scene.layout.width, BAR_HEIGHT);
  }
}

/** A canvas grows by so much at once, px. */
const SPARE_PX = 256;

function roomy(size: number): number {
  return Math.ceil(size / SPARE_PX) * SPARE_PX;
}

/** The size that a canvas has, where it is large enough and not far too large. */
function sizeFor(needed: number, has: number): number {
  return has >= needed && has <= 2 * roomy(needed) ? has : roomy(needed);
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
  const wide = sizeFor(width * ratio, canvas.width);
  const tall = sizeFor(height * ratio, canvas.height);
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
    const marked = code >= HEATS;
    const [red, green, blue] = marked ? scene.palette.hitRgb : scene.palette.heatRgb[code]!;
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
  const { scale, width: room } = scene.layout;
  const left = Math.max(placed.row.start[bar]! * scale, 0);
  const right = Math.min(placed.row.end[bar]! * scale, room);
  const gap = right - left > 4 ? 1 : 0;
  return { left, top: placed.top, width: Math.max(right - left - gap, 1), height: BAR_HEIGHT };
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
  context.fillStyle = palette.heat[row.heat[bar]!]!;
  if (width > 6) {
    context.beginPath();
    context.roundRect(left, top, width, height, 2.5);
    context.fill();
  } else context.fillRect(left, top, width, height);
  if (hit) {
    context.fillStyle = palette.hit;
    context.fillRect(left, top, width, scene.dims ? height : BOUND_PX);
  }
  const bound = scene.boundByDevice(row.operation[bar]!);
  if (bound !== null && bound === (row.side === "device") && width > 6) {
    context.fillStyle = hit && scene.dims ? palette.onHit : palette.onHeat[row.heat[bar]!]!;
    context.fillRect(left + 2, top + height - BOUND_PX, width - 4, BOUND_PX - 1);
  }
  context.globalAlpha = 1;
}

function drawLabel(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  label: Label,
): void {
  const { row } = placed;
  const hit = hitsOf(scene, row, label.bar) > 0;
  const middle = placed.top + BAR_HEIGHT / 2;
  if (label.lane === 0) {
    const shown = hit && scene.dims;
    context.globalAlpha = scene.dims && !hit ? 0.75 : 1;
    const own = scene.palette.onHeat[row.heat[label.bar]!]!;
    context.fillStyle = shown ? scene.palette.onHit : scene.dims ? scene.palette.text : own;
    context.fillText(label.text, label.left, middle);
    context.globalAlpha = 1;
    return;
  }
  const y = placed.top + BAR_HEIGHT + (label.lane - 0.5) * LANE_HEIGHT + 1;
  context.fillStyle = scene.palette.line;
  const lineEnd = label.lane === 1 ? 3 : (label.lane - 1) * LANE_HEIGHT + 3;
  context.fillRect(Math.round(label.leader), placed.top + BAR_HEIGHT, 1, lineEnd);
  context.fillStyle = hit && scene.dims ? scene.palette.hit : scene.palette.dim;
  context.fillText(label.text, label.left, y);
}

function outline(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  bar: number,
  colour: string,
  thick: number,
): void {
  const { left, top, width, height } = boxOf(scene, placed, bar);
  context.strokeStyle = colour;
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

/** The opened operation keeps an outline, and lines lead down from it to the level inside it. */
function drawOpened(
  context: CanvasRenderingContext2D,
  scene: Scene,
  placed: PlacedRow,
  bar: number,
): void {
  const { left, width } = boxOf(scene, placed, bar);
  outline(context, scene, placed, bar, scene.palette.accent, 1.5);
  if (placed.row.side !== "cpu") return;
  context.fillStyle = scene.palette.accent;
  context.globalAlpha = 0.35;
  const top = placed.top + BAR_HEIGHT;
  for (const x of [left, left + width - 1]) context.fillRect(x, top, 1, scene.layout.height - top);
  context.globalAlpha = 1;
}
