/**
 * Where names stand: inside their bar where they fit, else below it with a line, else nowhere.
 * None is cut, and none overlaps another.
 *
 * Source: HOTLINE appendix C.4 (Non-Overlapping Label Placement).
 */

/** One bar that wants a name, in pixels; `texts` from the fullest to the shortest. */
export interface Wanted {
  bar: number;
  from: number;
  to: number;
  texts: string[];
  /** The larger, the sooner it is placed. */
  weight: number;
  /** Whether a place below will do. */
  below: boolean;
}

/** A name in its place: lane 0 is inside the bar, 1 and up lie below. */
export interface Label {
  bar: number;
  text: string;
  left: number;
  width: number;
  lane: number;
  /** Where a line leads from the bar to a label below it. */
  leader: number;
}

export interface Space {
  width: number;
  lanes: number;
  measure: (text: string) => number;
}

/** Room on both sides of a name inside its bar, px. */
export const PAD = 5;
/** Least distance of two names, px. */
const GAP = 8;
/** Least distance of a line to a name that it passes, px. */
const LINE_GAP = 2;

type Interval = [from: number, to: number];

export function placeLabels(wanted: Wanted[], space: Space): Label[] {
  const inside: Interval[] = [];
  const taken: Interval[][] = Array.from({ length: space.lanes }, () => []);
  const leaders: number[] = [];
  const placed: Label[] = [];
  for (const one of [...wanted].sort((a, b) => b.weight - a.weight || a.from - b.from)) {
    const label = placeInside(one, inside, space) ?? placeBelow(one, taken, leaders, space);
    if (label) placed.push(label);
  }
  return placed;
}

function placeInside(one: Wanted, inside: Interval[], space: Space): Label | null {
  const from = Math.max(one.from, 0);
  const to = Math.min(one.to, space.width);
  for (const text of one.texts) {
    const width = space.measure(text);
    if (width + 2 * PAD > to - from) continue;
    const left = to - from > 3 * width ? from + PAD : (from + to - width) / 2;
    if (!isFree(inside, left, left + width)) return null;
    inside.push([left, left + width]);
    return { bar: one.bar, text, left, width, lane: 0, leader: (from + to) / 2 };
  }
  return null;
}

function placeBelow(
  one: Wanted,
  taken: Interval[][],
  leaders: number[],
  space: Space,
): Label | null {
  const text = one.texts.at(-1);
  if (!one.below || text === undefined) return null;
  const width = space.measure(text);
  if (width > space.width) return null;
  const middle = Math.min(Math.max((one.from + one.to) / 2, 0), space.width);
  for (let lane = 0; lane < taken.length; lane++) {
    const above = taken.slice(0, lane);
    if (above.some((labels) => !isFree(labels, middle, middle, LINE_GAP))) continue;
    const left = freeLeft(taken[lane]!, leaders, middle, width, space.width, lane);
    if (left === null) continue;
    taken[lane]!.push([left, left + width]);
    if (lane > 0) leaders.push(middle);
    return { bar: one.bar, text, left, width, lane: lane + 1, leader: middle };
  }
  return null;
}

/** A free place that the line from the bar meets: centred, or to one side of the line. */
function freeLeft(
  labels: Interval[],
  leaders: number[],
  middle: number,
  width: number,
  space: number,
  lane: number,
): number | null {
  for (const left of [middle - width / 2, middle - 6, middle - width + 6]) {
    const at = Math.min(Math.max(left, 0), space - width);
    const crossed =
      lane === 0 && leaders.some((one) => one > at - LINE_GAP && one < at + width + LINE_GAP);
    if (!crossed && isFree(labels, at, at + width)) return at;
  }
  return null;
}

function isFree(labels: Interval[], from: number, to: number, gap = GAP): boolean {
  return labels.every(([left, right]) => to + gap <= left || from >= right + gap);
}
