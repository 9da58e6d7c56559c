import type { MemoryColumns } from "../model/memory";
import { fillColumns } from "./columns";
import { fitted } from "./fitted";

/** Height of the areas, px. */
export const AREAS_PX = 190;

export interface MemoryScene {
  columns: MemoryColumns;
  width: number;
  /** Bytes at the top. */
  top: number;
  /** Positions of the groups from the bottom up, and the color of each position. */
  order: readonly number[];
  colors: readonly string[];
  /** The group that stands out, null for none. */
  group: number | null;
  ground: string;
  line: string;
}

/** How much of their color the other areas keep where one stands out. */
const FADED = 0.25;

/** Draws the areas, each on those below it, with a hair's breadth of ground between two. */
export function drawMemory(canvas: HTMLCanvasElement, scene: MemoryScene): void {
  const { columns, width, top, order, colors, group, ground, line } = scene;
  const context = fitted(canvas, width, AREAS_PX, { alpha: false });
  context.fillStyle = ground;
  context.fillRect(0, 0, width, AREAS_PX);
  const pixel = width / columns.most.length;
  const scale = (AREAS_PX - 2) / top;
  const below = new Float64Array(columns.most.length);
  for (const position of order) {
    const held = columns.held[position]!;
    context.globalAlpha = group === null || group === position ? 1 : FADED;
    context.fillStyle = colors[position]!;
    fillArea(context, held, below, pixel, scale);
    for (let at = 0; at < below.length; at++) below[at]! += held[at]!;
  }
  context.globalAlpha = 1;
  strokeSteps(context, columns.least, pixel, scale, ground);
  strokeSteps(context, columns.reserved, pixel, scale, line);
}

/** Fills one area, a hair's breadth above the one below it where there is room. */
function fillArea(
  context: CanvasRenderingContext2D,
  held: Float64Array,
  below: Float64Array,
  pixel: number,
  scale: number,
): void {
  const bottom = held.map((bytes, at) => (bytes > 0 ? AREAS_PX - below[at]! * scale : NaN));
  const top = bottom.map((foot, at) => {
    const height = held[at]! * scale;
    return foot - height + (height > 3 ? 0.5 : 0);
  });
  fillColumns(context, bottom, top, pixel);
}

/** Draws a value as a line of steps. */
function strokeSteps(
  context: CanvasRenderingContext2D,
  values: Float64Array,
  pixel: number,
  scale: number,
  color: string,
): void {
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  let open = false;
  for (let at = 0; at < values.length; at++) {
    if (Number.isNaN(values[at]!)) {
      open = false;
      continue;
    }
    const y = AREAS_PX - values[at]! * scale;
    if (open) context.lineTo(at * pixel, y);
    else context.moveTo(at * pixel, y);
    context.lineTo((at + 1) * pixel, y);
    open = true;
  }
  context.stroke();
}

/** Draws the parts of a segment side by side; what is free is ground. */
export function drawSegment(
  canvas: HTMLCanvasElement,
  parts: readonly number[],
  colors: readonly string[],
  ground: string,
  size: { width: number; height: number },
): void {
  const context = fitted(canvas, size.width, size.height, { alpha: false });
  context.fillStyle = ground;
  context.fillRect(0, 0, size.width, size.height);
  const pixel = size.width / parts.length;
  for (let at = 0; at < parts.length; at++) {
    const kind = parts[at]!;
    if (kind < 0) continue;
    let next = at + 1;
    while (next < parts.length && parts[next] === kind) next++;
    context.fillStyle = colors[kind]!;
    context.fillRect(at * pixel, 0, (next - at) * pixel, size.height);
    at = next - 1;
  }
}
