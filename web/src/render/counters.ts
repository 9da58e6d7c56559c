import type { Extremes } from "../model/counters";
import type { Span } from "../model/span";
import { fillColumns } from "./columns";
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
  const floor = columns.least.map((value) => (Number.isNaN(value) ? NaN : zero));
  const least = columns.least.map(y);
  const most = columns.most.map((value, at) => Math.min(y(value), least[at]! - 1));
  context.fillStyle = palette.line;
  fillColumns(context, floor, least, pixel);
  context.fillStyle = palette.dim;
  fillColumns(context, least, most, pixel);
}
