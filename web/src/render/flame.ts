import {
  changeOf,
  firstEndingAfter,
  ROW_PX,
  THIN_PX,
  type FlameLayout,
  type Found,
} from "../model/flame";
import { fittingName } from "../base/names";
import { textMeasure } from "./canvas2d";
import { fitted, FONT } from "./fitted";
import { parseHex, readableOn } from "./palette";
import { drawnBy } from "./redraw";

const GAP_PX = 0.5;
const LABEL_FROM_PX = 34;
const MARK_PX = 3;

/** What is drawn of a flame graph. */
export interface FlameScene {
  layout: FlameLayout;
  /** The box that fills the width; those around it do too. */
  focus: number;
  width: number;
  found: Found | null;
  finding: Int32Array;
  severities: readonly string[];
  colors: FlameColors;
}

/** The colors of boxes, read from the page's style sheet once a theme. */
export interface FlameColors {
  kinds: Map<string, string>;
  rest: string;
  critical: string;
  more: string;
  less: string;
  same: string;
  background: string;
  text: string;
  accent: string;
}

// In the words of the tree's kinds; several may share one.
const KINDS: Record<string, string> = {
  python: "kind-python", native: "shade-1", module: "kind-module", operator: "kind-operator",
  annotation: "lane", kernel: "kind-kernel", memcpy: "kind-copy", memset: "kind-copy",
  communication: "kind-copy", runtime: "shade-1", sync: "shade-1", instruction: "kind-kernel",
  unlinked: "shade-4",
}; // prettier-ignore

export function readFlameColors(element: HTMLElement): FlameColors {
  const style = getComputedStyle(element);
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    kinds: new Map(Object.entries(KINDS).map(([kind, name]) => [kind, color(name)])),
    rest: color("lane"),
    critical: color("error"),
    more: color("more"),
    less: color("less"),
    same: color("lane"),
    background: color("surface"),
    text: color("text"),
    accent: color("accent"),
  };
}

function blend(color: string, ground: string, share: number): string {
  const [one, other] = [parseHex(color), parseHex(ground)];
  const mixed = one.map((part, i) => Math.round(part * share + other[i]! * (1 - share)));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

export function flameHeight(layout: FlameLayout): number {
  return layout.rows.length * ROW_PX;
}

/** From where to where a box goes on the canvas, px. */
export function extentOf(scene: FlameScene, box: number): [number, number] {
  const { layout, focus, width } = scene;
  const [from, to] = [layout.left[focus]!, layout.right[focus]!];
  const scale = width / (to - from);
  return [(layout.left[box]! - from) * scale, (layout.right[box]! - from) * scale];
}

/** The box under a point; -1 for none. */
export function boxAt(scene: FlameScene, x: number, y: number): number {
  const { layout, focus, width } = scene;
  const [from, to] = [layout.left[focus]!, layout.right[focus]!];
  return layout.at(Math.floor(y / ROW_PX), from + (x / width) * (to - from));
}

/** Draws all boxes: at most one a pixel in each row, whatever their number. */
export function drawFlame(canvas: HTMLCanvasElement, scene: FlameScene): void {
  drawnBy(canvas, (other) => drawFlame(other, scene));
  const context = fitted(canvas, scene.width, flameHeight(scene.layout));
  context.fillStyle = scene.colors.background;
  context.fillRect(0, 0, scene.width, flameHeight(scene.layout));
  context.font = FONT;
  context.textBaseline = "middle";
  scene.layout.rows.forEach((row, depth) => drawRow(context, scene, row, depth * ROW_PX));
}

function drawRow(
  context: CanvasRenderingContext2D,
  scene: FlameScene,
  row: Int32Array,
  top: number,
): void {
  const { layout, focus, width } = scene;
  const [from, to] = [layout.left[focus]!, layout.right[focus]!];
  let drawn = -1;
  for (let i = firstEndingAfter(layout, row, from); i < row.length; i++) {
    const box = row[i]!;
    if (layout.left[box]! >= to) break;
    const [start, end] = extentOf(scene, box);
    const [left, right] = [Math.max(start, 0), Math.min(end, width)];
    if (right - left < THIN_PX) {
      const pixel = Math.floor(left);
      if (pixel === drawn) continue;
      drawn = pixel;
      context.fillStyle = fill(scene, box);
      context.fillRect(pixel, top, 1, ROW_PX - 1);
      continue;
    }
    drawBox(context, scene, box, left, right, top);
  }
}

function drawBox(
  context: CanvasRenderingContext2D,
  scene: FlameScene,
  box: number,
  left: number,
  right: number,
  top: number,
): void {
  const { layout, colors, found } = scene;
  const color = fill(scene, box);
  const dims = found !== null && !found.is[box];
  context.globalAlpha = dims ? 0.3 : 1;
  context.fillStyle = color;
  context.fillRect(left, top, right - left - GAP_PX, ROW_PX - 1);
  context.globalAlpha = 1;
  if (found?.is[box]) stroke(context, colors.text, left, right, top, 2);
  if (layout.wire.boxes.hot[box]) {
    context.fillStyle = colors.text;
    context.fillRect(left, top + ROW_PX - 1 - MARK_PX, right - left - GAP_PX, MARK_PX);
  }
  if (right - left < LABEL_FROM_PX) return;
  context.fillStyle = dims ? colors.text : readableOn(parseHex(color));
  const mark = layout.wire.boxes.backward[box] ? "↩ " : "";
  context.fillText(
    fittingName(mark + layout.name(box), right - left - 8, textMeasure()),
    left + 4,
    top + ROW_PX / 2 - 0.5,
  );
}

/** The color of a box: of a critical finding, of its change, or of its kind. */
function fill(scene: FlameScene, box: number): string {
  const { layout, colors } = scene;
  const finding = scene.finding[box]!;
  if (scene.severities[finding] === "critical") return colors.critical;
  if (layout.wire.boxes.before) {
    const change = changeOf(layout, box);
    return blend(change > 0 ? colors.more : colors.less, colors.same, Math.sqrt(Math.abs(change)));
  }
  return colors.kinds.get(layout.kind(box)) ?? colors.rest;
}

/** Outlines the box under the pointer and the chosen one; nothing else is drawn again. */
export function drawOutlines(
  canvas: HTMLCanvasElement,
  scene: FlameScene,
  hovered: number,
  chosen: number,
): void {
  drawnBy(canvas, (other) => drawOutlines(other, scene, -1, chosen));
  const context = fitted(canvas, scene.width, flameHeight(scene.layout));
  context.clearRect(0, 0, scene.width, flameHeight(scene.layout));
  for (const [box, color] of [
    [chosen, scene.colors.accent],
    [hovered, scene.colors.text],
  ] as const) {
    if (box < 0) continue;
    const [left, right] = extentOf(scene, box);
    const top = scene.layout.depth[box]! * ROW_PX;
    stroke(context, color, Math.max(left, 0), Math.min(right, scene.width), top, 2);
  }
}

function stroke(
  context: CanvasRenderingContext2D,
  color: string,
  left: number,
  right: number,
  top: number,
  thick: number,
): void {
  context.strokeStyle = color;
  context.lineWidth = thick;
  const inset = thick / 2;
  context.strokeRect(
    left + inset,
    top + inset,
    Math.max(right - left - thick - GAP_PX, 1),
    ROW_PX - 1 - thick,
  );
}
