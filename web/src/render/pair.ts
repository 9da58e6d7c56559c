import type { Pair } from "../api/types";
import { causeName } from "../base/causes";
import { words } from "../base/format";
import { fittingName } from "../base/names";
import { isAlone, partnerOf, sidesOf, spanOf, type Row, type Side, type Spot } from "../model/pair";
import type { Span } from "../model/span";
import { STAGES } from "../model/stages";
import { fitted, FONT_SMALL } from "./fitted";
import { hueOfStage, type Hue, type Palette } from "./palette";
import { drawnBy } from "./redraw";
import { hatch } from "./tracks";

/** Height of a lane and of the room between two, in which ribbons join partners, px. */
export const LANE_PX = 16;
export const GAP_PX = 14;
export const PAIR_PX = 2 * LANE_PX + GAP_PX;
const DRAWN_PX = 15;
const LABEL_PX = 26;
const PAD = 4;
const INTENSITY = 11;
/** Narrower ribbons would be noise, px. */
const RIBBON_PX = 1.5;
/** A change of less than this share of a piece is drawn as none. */
const ALIKE = 0.05;

/** A row of both sides, and what is looked at in it. */
export interface PairScene {
  pair: Pair;
  row: Row;
  window: Span;
  width: number;
  palette: Palette;
  /** What stands out, with its partner; null for nothing in this row. */
  spot: Spot | null;
  /** What is searched; what does not have it is pale. */
  text: string;
  measure: (text: string) => number;
}

/** Draws a row: the lane on screen, ribbons to what does the same, and the lane of the other side. */
export function drawPair(canvas: HTMLCanvasElement, scene: PairScene): void {
  drawnBy(canvas, (other) => drawPair(other, scene));
  const { pair, row, width, palette } = scene;
  const context = fitted(canvas, width, PAIR_PX, { alpha: false });
  context.fillStyle = palette.background;
  context.fillRect(0, 0, width, PAIR_PX);
  context.font = FONT_SMALL;
  context.textBaseline = "middle";
  for (const index of row.after) ribbon(context, scene, index);
  for (const side of sidesOf(pair)) {
    for (const index of row[side])
      if (isAlone(pair[side], index)) wedge(context, scene, side, index);
    lane(context, scene, side);
  }
  if (scene.spot) outline(context, scene, scene.spot);
  const partner = scene.spot && partnerOf(pair, scene.spot);
  if (partner) outline(context, scene, partner);
}

function topOf({ pair }: PairScene, side: Side): number {
  return side === pair.upper ? 0 : LANE_PX + GAP_PX;
}

/** From where to where a rectangle reaches, px, a little beyond the edges at most. */
function place(scene: PairScene, spot: Spot): [left: number, right: number] {
  const { window, width } = scene;
  const scale = width / (window.to - window.from);
  const { from, to } = spanOf(scene.pair, spot);
  return [
    Math.max((from - window.from) * scale, -9),
    Math.min((to - window.from) * scale, width + 9),
  ];
}

/** Joins two partners, in the color of what the later side gained or lost. */
function ribbon(context: CanvasRenderingContext2D, scene: PairScene, index: number): void {
  const { pair, palette } = scene;
  const spot: Spot = { side: "after", row: 0, index };
  const partner = partnerOf(pair, spot);
  if (!partner) return;
  const [after, before] = [place(scene, spot), place(scene, partner)];
  const [upper, lower] = pair.upper === "after" ? [after, before] : [before, after];
  if (Math.max(upper[1], lower[1]) < 0 || Math.min(upper[0], lower[0]) > scene.width) return;
  if (Math.max(upper[1] - upper[0], lower[1] - lower[0]) < RIBBON_PX) return;
  const share = pair.after.change_us[index]! / Math.max(pair.after.duration_us[index]!, pair.before.duration_us[partner.index]!, 1e-3); // prettier-ignore
  const alike = Math.abs(share) < ALIKE;
  context.fillStyle = alike ? palette.line : share > 0 ? palette.more : palette.less;
  context.globalAlpha = alike ? 0.22 : 0.3 + 0.5 * Math.min(Math.abs(share), 1);
  context.beginPath();
  context.moveTo(upper[0], DRAWN_PX);
  context.lineTo(Math.max(upper[1], upper[0] + 1), DRAWN_PX);
  context.lineTo(Math.max(lower[1], lower[0] + 1), LANE_PX + GAP_PX);
  context.lineTo(lower[0], LANE_PX + GAP_PX);
  context.fill();
  context.globalAlpha = 1;
}

/** Work of one side alone comes from nothing, or leads to it. */
function wedge(
  context: CanvasRenderingContext2D,
  scene: PairScene,
  side: Side,
  index: number,
): void {
  const [left, right] = place(scene, { side, row: 0, index });
  if (right < 0 || left > scene.width) return;
  const up = side === scene.pair.upper;
  const [edge, tip] = up
    ? [DRAWN_PX, LANE_PX + GAP_PX / 2]
    : [LANE_PX + GAP_PX, LANE_PX + GAP_PX / 2];
  context.fillStyle = side === "after" ? scene.palette.more : scene.palette.less;
  context.beginPath();
  context.moveTo(left, edge);
  context.lineTo(Math.max(right, left + 1), edge);
  context.lineTo((left + Math.max(right, left + 1)) / 2, tip);
  context.fill();
}

function lane(context: CanvasRenderingContext2D, scene: PairScene, side: Side): void {
  const { pair, row, width, palette, text } = scene;
  const [drawn, top] = [pair[side], topOf(scene, side)];
  const scale = width / (scene.window.to - scene.window.from);
  const end = (pair.start_ns + drawn.length_us * 1000 - scene.window.from) * scale;
  const begin = Math.max((pair.start_ns - scene.window.from) * scale, 0);
  context.fillStyle = palette.rowBackground;
  context.fillRect(begin, top, Math.min(end, width) - begin, DRAWN_PX);
  let seen = -Infinity;
  // What runs at once is drawn over each other: a name ends where the next piece begins.
  let named: Named | null = null;
  const tell = (until: number): void => {
    if (named) label(context, scene, { ...named, to: Math.min(named.to, until) });
    named = null;
  };
  for (const index of row[side]) {
    const [from, to] = place(scene, { side, row: 0, index });
    const idle = drawn.kind[index] === "idle";
    // Gaps too short to see would fill the row of a busy device.
    if (to < 0 || from > width || (to - from < 1 && (idle || to - seen < 0.7))) continue;
    seen = to;
    tell(from);
    const size = Math.max(to - from - (to - from > 3 ? 0.75 : 0), 0.8);
    const name = drawn.name[index] ?? "";
    const hue = hueOfStage(palette, STAGES.indexOf(drawn.stage[index] as (typeof STAGES)[number]));
    const heat = text && !name.toLowerCase().includes(text) ? 0 : INTENSITY;
    context.fillStyle = idle ? hatch(context, palette, name) : hue.heat[heat]!;
    context.fillRect(from, top, size, DRAWN_PX);
    if (size >= LABEL_PX) named = { name, idle, hue, heat, kind: drawn.kind[index] ?? "", from: Math.max(from, 0), to: Math.min(to, width), top }; // prettier-ignore
  }
  tell(width);
}

interface Named {
  name: string;
  kind: string;
  idle: boolean;
  hue: Hue;
  heat: number;
  from: number;
  to: number;
  top: number;
}

function label(context: CanvasRenderingContext2D, scene: PairScene, one: Named): void {
  const { palette, measure } = scene;
  const own = one.idle ? causeName(one.name) : one.kind === "stage" ? words(one.name) : one.name;
  const text = fittingName(own, one.to - one.from - 2 * PAD, measure);
  if (!text) return;
  if (one.idle) {
    context.fillStyle = palette.rowBackground;
    context.fillRect(one.from + PAD - 2, one.top + 1, measure(text) + 4, DRAWN_PX - 2);
  }
  context.fillStyle = one.idle ? palette.text : one.hue.on[one.heat]!;
  context.fillText(text, one.from + PAD, one.top + DRAWN_PX / 2 + 0.5);
}

function outline(context: CanvasRenderingContext2D, scene: PairScene, spot: Spot): void {
  const [left, right] = place(scene, spot);
  context.strokeStyle = scene.palette.text;
  context.lineWidth = 2;
  context.strokeRect(
    left + 1,
    topOf(scene, spot.side) + 1,
    Math.max(right - left - 2, 2),
    DRAWN_PX - 2,
  );
}
