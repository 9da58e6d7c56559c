import type { Extremes } from "../model/counters";
import type { Span } from "../model/span";
import { fitted } from "./fitted";
import type { Palette } from "./palette";
import { drawnBy } from "./redraw";

/** Height of a counter's lane, px. */
export const LANE_PX = 30;

export interface CounterScene {
  /** For each column of the screen's pixels. */
  columns: Extremes;
  width: number;
  /** The values at the bottom and at the top. */
  scale: Span;
  palette: Palette;
}

/** Draws a counter: solid up to the least of each column, darker from there to the most. */
export function drawCounter(canvas: HTMLCanvasElement, scene: CounterScene): void {
  drawnBy(canvas, (other) => drawCounter(other, scene));
  const { columns, width, scale, palette } = scene;
  const context = fitted(canvas, width, LANE_PX, { alpha: false });
  context.fillStyle = palette.rowBackground;
  context.fillRect(0, 0, width, LANE_PX);
  const room = LANE_PX - 2;
  const y = (value: number): number =>
    LANE_PX - Math.max(((value - scale.from) / (scale.to - scale.from)) * room, 0);
  const zero = y(Math.min(Math.max(0, scale.from), scale.to));
  const pixel = width / columns.least.length;
  context.fillStyle = palette.line;
  area(context, columns.least, pixel, (at) => [zero, y(columns.least[at]!)]);
  context.fillStyle = palette.dim;
  area(context, columns.least, pixel, (at) => [
    y(columns.least[at]!),
    Math.min(y(columns.most[at]!), y(columns.least[at]!) - 1),
  ]);
}

/** Fills columns from one height to another as one path; none where nothing is known. */
function area(
  context: CanvasRenderingContext2D,
  values: Float64Array,
  pixel: number,
  heights: (at: number) => [bottom: number, top: number],
): void {
  context.beginPath();
  for (let at = 0; at < values.length; at++) {
    if (Number.isNaN(values[at]!)) continue;
    const [bottom, top] = heights(at);
    let next = at + 1;
    for (; next < values.length; next++) {
      const [other, high] = heights(next);
      if (other !== bottom || high !== top) break;
    }
    context.rect(at * pixel, top, (next - at) * pixel, bottom - top);
    at = next - 1;
  }
  context.fill();
}
