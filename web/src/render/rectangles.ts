import type { WhatIf } from "../api/whatif_types";
import { lengthOf, type Row, type Side, type Spot } from "../model/rectangles";

export const ROW_PX = 15;
const STAGES: Record<string, string> = {
  data_loading: "cat-orange", transfer: "cat-sky", forward: "cat-green", loss: "cat-yellow",
  backward: "cat-blue", optimizer: "cat-pink", communication: "cat-red", zero_grad: "cat-grey",
}; // prettier-ignore

/** One of the two timelines, and what is looked at in it. */
export interface RectangleScene {
  timeline: WhatIf["timeline"];
  side: Side;
  rows: readonly Row[];
  width: number;
  spot: Spot | null;
}

/** Draws the threads as rows; their ground ends where the timeline does. */
export function drawRectangles(canvas: HTMLCanvasElement, scene: RectangleScene): void {
  const { timeline, side, rows, width, spot } = scene;
  const height = rows.length * ROW_PX;
  const context = fitted(canvas, width, height);
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const fills = new Map(Object.entries(STAGES).map(([stage, name]) => [stage, colour(name)]));
  const [rest, lane, text] = [colour("cat-pale"), colour("lane"), colour("text")];
  const drawn = timeline[side];
  const scale = width / lengthOf(timeline);
  context.clearRect(0, 0, width, height);
  rows.forEach((row, number) => {
    const top = number * ROW_PX + 1;
    context.fillStyle = lane;
    context.fillRect(0, top, drawn.length_us * scale, ROW_PX - 2);
    for (const index of row[side]) {
      context.fillStyle = fills.get(drawn.stage[index]!) ?? rest;
      const left = drawn.start_us[index]! * scale;
      context.fillRect(left, top, Math.max(drawn.duration_us[index]! * scale, 1), ROW_PX - 2);
    }
  });
  if (spot?.side !== side || spot.row >= rows.length) return;
  context.strokeStyle = text;
  context.lineWidth = 2;
  const left = drawn.start_us[spot.index]! * scale;
  const across = Math.max(drawn.duration_us[spot.index]! * scale, 2);
  context.strokeRect(left, spot.row * ROW_PX + 1, across, ROW_PX - 2);
}

function fitted(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
): CanvasRenderingContext2D {
  const ratio = devicePixelRatio;
  canvas.width = Math.max(Math.round(width * ratio), 1);
  canvas.height = Math.max(Math.round(height * ratio), 1);
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
