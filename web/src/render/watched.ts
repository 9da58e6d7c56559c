import type { WatchAnswer } from "../api/watch_types";
import type { Span } from "../model/span";
import { STAGES } from "../model/stages";
import { marks, PARTS, topOf, type Column, type WatchedSteps } from "../model/watched";
import { fitted, FONT_SMALL } from "./fitted";
import { hueOfStage, type Hue, type Palette } from "./palette";
import { drawnBy } from "./redraw";
import { hatch } from "./tracks";

/** A lane below the bars is so tall, px. */
export const LANE_PX = 16;
const MEDIAN_HEAT = 11;
/** The longest step of a column is behind its median one, and paler. */
const WORST_HEAT = 5;
const STAGE_OF = PARTS.map(([field, stage]) => [field, STAGES.indexOf(stage as never)] as const);

/** A row of marks below the bars: of a field, or of something else that is known of the run. */
export interface Lane {
  id: string;
  name: string;
}

export interface RunScene {
  steps: WatchedSteps;
  answer: WatchAnswer;
  window: Span;
  width: number;
  /** Of the bars; lanes come below. */
  height: number;
  lanes: readonly Lane[];
  palette: Palette;
  /** The field whose steps are marked; empty for none. */
  mark: string;
  /** Times of the slow steps that are explained, and of the chosen step. */
  chosen: readonly Span[];
  /** Times of slow steps: of a stretch, or of each of those that are apart. */
  slow: readonly { apart: boolean; marks: readonly Span[] }[];
}

/** The steps of a run by time, each bar stacked of its parts; below them lanes of marks. */
export function drawRun(canvas: HTMLCanvasElement, scene: RunScene): void {
  drawnBy(canvas, (other) => drawRun(other, scene));
  const { steps, width, height, lanes, palette, window } = scene;
  const context = fitted(canvas, width, height + lanes.length * LANE_PX, { alpha: false });
  context.fillStyle = palette.background;
  context.fillRect(0, 0, width, height + lanes.length * LANE_PX);
  context.fillStyle = palette.rowBackground;
  context.fillRect(0, 0, width, height);
  const scale = width / (window.to - window.from);
  const x = (ns: number): number => (ns - window.from) * scale;
  const unseen = steps.length ? x(steps.begin[0]!) : width;
  if (unseen > 0) {
    context.fillStyle = hatch(context, palette, "none");
    context.fillRect(0, 0, Math.min(unseen, width), height);
    const text = steps.number[0] ? "steps that the file no longer holds" : "start";
    label(context, palette, text, Math.max(x(0), 0) + 4, unseen);
  }
  if (!steps.length || unseen >= width) return;
  const columns = steps.columns(window, width);
  const top = topOf(steps, columns);
  drawLines(context, scene, top);
  for (const { apart, marks } of scene.slow)
    if (!apart) for (const span of marks) band(context, scene, span, x);
  const bars = { context, scene, columns, top, x };
  for (const one of columns) drawBar(bars, one, one.worst, WORST_HEAT);
  for (const one of columns) drawBar(bars, one, one.median, MEDIAN_HEAT);
  drawCuts(bars);
  if (scene.mark) drawMarks(bars);
  lanes.forEach((lane, at) => drawLane(bars, lane, height + at * LANE_PX));
  for (const { from, to } of scene.chosen) {
    context.strokeStyle = palette.accent;
    context.lineWidth = 2;
    context.strokeRect(x(from), 1, Math.max((to - from) * scale, 2), height - 2);
  }
}

interface Bars {
  context: CanvasRenderingContext2D;
  scene: RunScene;
  columns: readonly Column[];
  top: number;
  x: (ns: number) => number;
}

/** One step of a column, stacked of its parts. */
function drawBar(
  { context, scene, top, x }: Bars,
  column: Column,
  place: number,
  heat: number,
): void {
  const { steps, palette, height } = scene;
  const tall = (height - headOf(height)) / top;
  const [left, across] = edges(steps, column, x);
  const gap = across > 6 ? 1 : 0;
  let foot = 0;
  const piece = (ms: number, hue: Hue): void => {
    const [low, high] = [Math.min(foot, top), Math.min(foot + ms, top)];
    foot += ms;
    if (high <= low) return;
    context.fillStyle = hue.heat[heat]!;
    context.fillRect(left, height - high * tall, across - gap, Math.max((high - low) * tall, 0.4));
  };
  for (const [field, stage] of STAGE_OF) piece(steps.ms(field, place), hueOfStage(palette, stage));
  piece(Math.max(steps.wallMs[place]! - foot, 0), palette.none);
}

/** Where a column is and how wide, in whole pixels of the screen. */
function edges(steps: WatchedSteps, { from, last }: Column, x: (ns: number) => number, least = 1): [left: number, across: number] {
  const whole = (px: number): number => Math.round(px * devicePixelRatio) / devicePixelRatio;
  const [left, right] = [whole(x(steps.begin[from]!)), whole(x(steps.endOf(last)))];
  return [left, Math.max(right - left, least)];
} // prettier-ignore

/** A gap near the top of what is longer than drawn. */
function drawCuts({ context, scene, columns, top, x }: Bars): void {
  const { steps, palette, height } = scene;
  context.fillStyle = palette.rowBackground;
  for (const one of columns) {
    if (steps.wallMs[one.worst]! <= top) continue;
    const [left, across] = edges(steps, one, x);
    context.fillRect(left - 0.5, 1.5 * headOf(height), across + 1, 2);
  }
}

function drawMarks({ context, scene, columns, x }: Bars): void {
  const { steps, palette, mark, height } = scene;
  context.fillStyle = palette.accent;
  for (const one of columns) {
    if (!marks(mark, one.peak(mark))) continue;
    const [left, across] = edges(steps, one, x, 1.5);
    context.fillRect(left, 0, across, 6);
    context.globalAlpha = 0.12;
    context.fillRect(left, 6, across, height - 6);
    context.globalAlpha = 1;
  }
}

function drawLane(bars: Bars, lane: Lane, y: number): void {
  const { context, scene, columns, x } = bars;
  const { steps, palette, answer, width } = scene;
  const [above, high] = [y + 2, LANE_PX - 4];
  context.fillStyle = palette.rowBackground;
  context.fillRect(0, above, width, high);
  if (lane.id === "slow") {
    context.fillStyle = palette.more;
    for (const apart of [true, false]) {
      context.globalAlpha = apart ? 0.45 : 1; // stretches are on top of single steps
      for (const { marks } of scene.slow.filter((one) => one.apart === apart))
        for (const { from, to } of marks)
          context.fillRect(x(from), above, Math.max(x(to) - x(from), 2), high);
    }
  } else if (lane.id === "recordings") {
    context.fillStyle = palette.accent;
    for (const [step] of answer.recordings) {
      const at = x(steps.begin[steps.placeOf(step)]!);
      context.beginPath();
      context.moveTo(at, above);
      context.lineTo(at + 6, y + LANE_PX - 2);
      context.lineTo(at - 6, y + LANE_PX - 2);
      context.fill();
    }
  } else if (lane.id === "device") drawDevice(bars, above, high);
  else {
    const stage = STAGE_OF.find(([field]) => field === lane.id)?.[1] ?? -1;
    const { heat } = hueOfStage(palette, stage);
    for (const one of columns) {
      const share = one.peak(lane.id);
      if (!marks(lane.id, share)) continue;
      const [left, across] = edges(steps, one, x, 2);
      context.fillStyle = heat[Math.min(5 + Math.round(share * 7), heat.length - 1)]!;
      context.fillRect(left, above, across, high);
    }
  }
}

/** The clock as a line; its ground where the device was slowed down, and where memory was given back. */
function drawDevice({ context, scene, x }: Bars, y: number, high: number): void {
  const { device } = scene.answer;
  const { palette } = scene;
  const most = Math.max(...device.map((row) => row[1]!), 1);
  const end = (at: number): number => device[at + 1]?.[0] ?? scene.window.to;
  device.forEach(([ns, , , , reasons], at) => {
    if (!(reasons! & THROTTLED)) return;
    context.fillStyle = palette.more;
    context.fillRect(x(ns!), y, Math.max(x(end(at)) - x(ns!), 1.5), high);
  });
  context.fillStyle = palette.text;
  device.forEach(([ns, clock, , , , retries], at) => {
    const below = (1 - clock! / most) * (high - 1.5);
    context.fillRect(x(ns!), y + below, Math.max(x(end(at)) - x(ns!), 1), 1.5);
    if (at && retries! > device[at - 1]![5]!) context.fillRect(x(ns!), y, 2, high);
  });
}

/** Of NVML's reasons for a low clock those that slow a device that works (nvml.h). */
const THROTTLED = 0x60 | 0x04 | 0x88;

/** Times of the bars, as lines with their ms. */
function drawLines(context: CanvasRenderingContext2D, { width, height, palette }: RunScene, top: number): void {
  context.fillStyle = palette.line;
  context.globalAlpha = 0.45;
  for (const ms of linesOf(top)) context.fillRect(0, Math.round(yOf(ms, top, height)), width, 1);
  context.globalAlpha = 1;
} // prettier-ignore

/** Round times below a scale's top, ms. */
export function linesOf(top: number): number[] {
  const power = 10 ** Math.floor(Math.log10(top / 3));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => top / one <= 4)!;
  return Array.from({ length: Math.floor(top / step) }, (_, i) => (i + 1) * step);
}

/** Room above the longest bar, px. */
function headOf(height: number): number {
  return height * 0.06;
}

export function yOf(ms: number, top: number, height: number): number {
  return height - (ms / top) * (height - headOf(height));
}

/** The ground of slow steps that follow one another. */
function band(context: CanvasRenderingContext2D, scene: RunScene, span: Span, x: (ns: number) => number): void {
  context.fillStyle = scene.palette.more;
  context.globalAlpha = 0.14;
  context.fillRect(x(span.from), 0, Math.max(x(span.to) - x(span.from), 2), scene.height);
  context.globalAlpha = 1;
} // prettier-ignore

function label(context: CanvasRenderingContext2D, palette: Palette, text: string, left: number, right: number): void {
  context.font = FONT_SMALL;
  const size = context.measureText(text).width;
  if (size + 12 > right - left) return;
  context.fillStyle = palette.background;
  context.fillRect(left, 4, size + 8, 16);
  context.fillStyle = palette.text;
  context.textBaseline = "middle";
  context.fillText(text, left + 4, 12.5);
} // prettier-ignore
