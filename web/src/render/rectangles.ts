import type { Row, Side, Spot, TwoTimelines } from "../model/rectangles";
import type { Span } from "../model/span";
import { STAGES } from "../model/stages";
import { fitted } from "./fitted";

export const ROW_PX = 15;

/** One of the two timelines, and what is looked at in it. */
export interface RectangleScene {
  timeline: TwoTimelines;
  side: Side;
  rows: readonly Row[];
  width: number;
  span: Span;
  /** What is being marked to be zoomed to. */
  marked: Span | null;
  spot: Spot | null;
  /** The stage that stands out in both; null for none. */
  stage: string | null;
}

/** Opaque, as many pieces may lie on one pixel. */
const dimmed = (fill: string, ground: string): string =>
  `color-mix(in srgb, ${fill} 22%, ${ground})`;

/** Draws the threads as rows; their ground ends where the timeline does. */
export function drawRectangles(canvas: HTMLCanvasElement, scene: RectangleScene): void {
  const { timeline, side, rows, width, span, marked, spot, stage } = scene;
  const height = rows.length * ROW_PX;
  const context = fitted(canvas, width, height);
  const style = getComputedStyle(document.documentElement);
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const fills = new Map<string, string>(STAGES.map((stage) => [stage, color(`stage-${stage}`)]));
  const [rest, lane, text] = [color("stage-none"), color("lane"), color("text")];
  const drawn = timeline[side];
  const scale = width / (span.to - span.from);
  const x = (us: number): number => (us - span.from) * scale;
  context.clearRect(0, 0, width, height);
  rows.forEach((row, number) => {
    const top = number * ROW_PX + 1;
    context.fillStyle = lane;
    context.fillRect(0, top, Math.min(x(drawn.length_us), width), ROW_PX - 2);
    for (const index of row[side]) {
      const start = drawn.start_us[index]!;
      const [left, right] = [Math.max(x(start), 0), x(start + drawn.duration_us[index]!)];
      if (right < 0 || left > width) continue;
      const fill = fills.get(drawn.stage[index] ?? "") ?? rest;
      context.fillStyle =
        stage === null || drawn.stage[index] === stage ? fill : dimmed(fill, lane);
      context.fillRect(left, top, Math.max(Math.min(right, width) - left, 1), ROW_PX - 2);
    }
  });
  if (marked) {
    context.fillStyle = color("accent");
    context.globalAlpha = 0.25;
    context.fillRect(x(marked.from), 0, x(marked.to) - x(marked.from), height);
    context.globalAlpha = 1;
  }
  if (spot?.side !== side || spot.row >= rows.length) return;
  context.strokeStyle = text;
  context.lineWidth = 2;
  const left = x(drawn.start_us[spot.index]!);
  const across = Math.max(drawn.duration_us[spot.index]! * scale, 2);
  context.strokeRect(left, spot.row * ROW_PX + 1, across, ROW_PX - 2);
}
