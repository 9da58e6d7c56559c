import type { StepGrid } from "../model/steps";
import { milliseconds } from "../base/format";
import { fitted, FONT_SMALL } from "./fitted";
import type { Palette } from "./palette";
import { drawnBy } from "./redraw";

/** Steps are bars so tall, px. */
export const BARS_PX = 24;
const HEAT = 6;
/** The shortest step is still seen. */
const LEAST = 0.12;

interface Bar {
  left: number;
  across: number;
  bottom: number;
  high: number;
}

interface StripScene {
  grid: StepGrid;
  width: number;
  palette: Palette;
  /** Path of the step that is open. */
  open: string;
  measure: (text: string) => number;
}

/** The steps of a rank side by side: the taller, the longer. */
export function drawSteps(canvas: HTMLCanvasElement, scene: StripScene): void {
  drawnBy(canvas, (other) => drawSteps(other, scene));
  const { grid, width, palette, open } = scene;
  const height = BARS_PX;
  const context = fitted(canvas, width, height, { alpha: false });
  context.fillStyle = palette.background;
  context.fillRect(0, 0, width, height);
  context.font = FONT_SMALL;
  context.textBaseline = "middle";
  const wide = width / Math.max(grid.numbers.length, 1);
  const gap = wide > 4 ? 1 : 0;
  for (const { column, step } of grid.cells) {
    const share = Math.min(step.runtime_ns / grid.longest, 1);
    const [left, across] = [column * wide, Math.max(wide - gap, 0.7)];
    const high = Math.max(share, LEAST) * (height - 2);
    context.fillStyle = palette.none.heat[HEAT]!;
    context.fillRect(left, height - high, across, high);
    drawBusy(context, scene, step, { left, across, bottom: height, high });
    if (step.runtime_ns > grid.longest) drawCut(context, palette, left, across);
    drawNumber(context, scene, step, { left, across, bottom: height, high });
    if (step.id === open) drawOpen(context, palette, [left, 0, across, height]);
  }
}

/** A gap near the top of a bar that is longer than drawn. */
function drawCut(context: CanvasRenderingContext2D, palette: Palette, left: number, across: number): void {
  context.fillStyle = palette.background;
  context.fillRect(left, 5, across, 2);
} // prettier-ignore

/** How long the device works in a step, darker inside its bar. */
function drawBusy(
  context: CanvasRenderingContext2D,
  { palette }: StripScene,
  step: StepGrid["cells"][number]["step"],
  bar: Bar,
): void {
  if (!step.device_busy_ns) return;
  const high = bar.high * Math.min(step.device_busy_ns / Math.max(step.runtime_ns, 1), 1);
  context.fillStyle = palette.dim;
  context.fillRect(bar.left, bar.bottom - high, bar.across, high);
}

/** The number of a step, and how long it takes, where there is room. */
function drawNumber(
  context: CanvasRenderingContext2D,
  { palette, measure }: StripScene,
  step: StepGrid["cells"][number]["step"],
  bar: Bar,
): void {
  const text = `${step.step} · ${milliseconds(step.runtime_ns / 1e6)}`;
  const size = measure(text) + 8;
  if (size > bar.across - 4) return;
  context.fillStyle = palette.background;
  context.fillRect(bar.left + 3, bar.bottom - 17, size, 14);
  context.fillStyle = palette.text;
  context.fillText(text, bar.left + 7, bar.bottom - 9.5);
}

function drawOpen(
  context: CanvasRenderingContext2D,
  palette: Palette,
  [left, top, across, tall]: [number, number, number, number],
): void {
  context.strokeStyle = palette.accent;
  context.lineWidth = 2;
  const high = Math.max(tall, 3);
  context.strokeRect(left + 1, top + 1, Math.max(across - 2, 1), Math.max(high - 2, 1));
}
