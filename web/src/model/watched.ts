import { bytesOf } from "../api/element";
import type { StepColumns } from "../api/watch_types";
import type { Span } from "./span";

/** Parts of a step that follow one another, from the foot of its bar up, and their stages. */
export const PARTS: readonly [field: string, stage: string, name: string][] = [
  ["input", "data_loading", "waiting for data"],
  ["backward", "backward", "backward"],
  ["optimizer", "optimizer", "optimizer"],
  ["evaluation", "evaluation", "evaluation"],
  ["checkpoint", "checkpointing", "checkpoint"],
];
/** What overlaps with parts, on the thread that trains. */
export const OVERLAPS: readonly [field: string, name: string][] = [
  ["gc", "garbage collection"],
  ["compile", "compilation"],
  ["collective", "collectives"],
  ["queued", "waiting for a core"],
  ["cpu", "CPU time"],
];
const PEAKS = ["input", "evaluation", "checkpoint", "gc", "compile", "collective", "queued"];
/** A step is marked for a field from this share of it on; evaluation and checkpoints always. */
const MARKED = 0.02;
/** `PARTS_OF_STEP` of `stepscope.faces.page.watch_answer`. */
const UNITS = 4000;
const NS_PER_MS = 1e6;
/** A pixel of a bar, as a share of its height. */
const SEEN = 0.005;
/** Of a run that is followed for days the oldest half leaves the page: 28 MB. */
const MOST_STEPS = 1 << 20;

/** A column wider than this is split, px. */
const WIDE_PX = 3;

type Shares = Record<string, Uint16Array>;

/** The steps of a run that are on the page, by their place from 0 on. */
export class WatchedSteps {
  length = 0;
  number = new Uint32Array(1024);
  /** Since the start of the program, ns. */
  begin = new Float64Array(1024);
  wallMs = new Float32Array(1024);
  private shares: Shares = {};
  private levels = new Map<number, Level>();
  private readonly largest: Record<string, number> = {};

  constructor(private readonly most = MOST_STEPS) {}

  append(columns: StepColumns): void {
    const { count } = columns;
    if (!count) return;
    if (this.length + count > this.most) this.forget();
    this.grow(this.length + count, Object.keys(columns.shares));
    const [skipped, gap, wall] = [
      new Uint16Array(bufferOf(columns.skipped)),
      new Float32Array(bufferOf(columns.gap_ms)),
      new Float32Array(bufferOf(columns.wall_ms)),
    ];
    let [number, at] = [columns.first - skipped[0]!, columns.begin_ns - gap[0]! * NS_PER_MS];
    for (let i = 0; i < count; i++) {
      const place = this.length + i;
      number += skipped[i]!;
      at += gap[i]! * NS_PER_MS;
      [this.number[place], this.begin[place]] = [number, at];
      number += 1;
      at += wall[i]! * NS_PER_MS;
    }
    this.wallMs.set(wall, this.length);
    for (const [field, text] of Object.entries(columns.shares)) {
      const values = new Uint16Array(bufferOf(text));
      this.shares[field]!.set(values, this.length);
      this.largest[field] = values.reduce((a, b) => Math.max(a, b), this.largest[field] ?? 0);
    }
    for (const level of this.levels.values()) level.forget(this.length);
    this.length += count;
  }

  get last(): number {
    return this.length ? this.number[this.length - 1]! : -1;
  }

  endOf(place: number): number {
    return this.begin[place]! + this.wallMs[place]! * NS_PER_MS;
  }

  /** What a part takes of a step, 0 to 1. */
  share(field: string, place: number): number {
    return (this.shares[field]?.[place] ?? 0) / UNITS;
  }

  ms(field: string, place: number): number {
    return this.share(field, place) * this.wallMs[place]!;
  }

  /** Whether any step has a notable part of this. */
  has(field: string): boolean {
    return marks(field, (this.largest[field] ?? 0) / UNITS);
  }

  /** Whether a bar shows any of this. */
  isSeen(field: string): boolean {
    return this.has(field) || (this.largest[field] ?? 0) >= SEEN * UNITS;
  }

  isMarked(field: string, place: number): boolean {
    return marks(field, this.share(field, place));
  }

  /** The step that runs at a time, or the nearest before; the first before all. */
  placeAt(ns: number): number {
    return Math.max(firstAbove(this.begin, this.length, ns) - 1, 0);
  }

  /** The place of a step's number, or of the next one that there is. */
  placeOf(number: number): number {
    return Math.min(firstAbove(this.number, this.length, number - 1), this.length - 1);
  }

  /** The steps in sight, in columns as narrow as there are pixels for. */
  columns(window: Span, pixels: number): Column[] {
    const from = this.placeAt(window.from);
    const to = Math.min(
      Math.max(firstAbove(this.begin, this.length, window.to), from + 1),
      this.length,
    );
    const zoom = Math.max(Math.ceil(Math.log2((to - from) / Math.max(pixels, 1))), 0);
    const wide = (WIDE_PX * (window.to - window.from)) / Math.max(pixels, 1);
    const found: Column[] = [];
    const size = 2 ** zoom;
    for (let bin = Math.floor(from / size); bin * size < to; bin++)
      this.split(zoom, bin, wide, found);
    return found;
  }

  /** A bin as one column, or its halves where a long step makes it wide. */
  private split(zoom: number, bin: number, wideNs: number, found: Column[]): void {
    const size = 2 ** zoom;
    const [from, end] = [bin * size, Math.min((bin + 1) * size, this.length)];
    if (from >= end) return;
    if (zoom && this.endOf(end - 1) - this.begin[from]! > wideNs) {
      this.split(zoom - 1, 2 * bin, wideNs, found);
      this.split(zoom - 1, 2 * bin + 1, wideNs, found);
      return;
    }
    const level = this.levels.get(zoom) ?? new Level(this, size);
    this.levels.set(zoom, level);
    level.fill(bin);
    const [median, worst] = [level.median[bin]!, level.worst[bin]!];
    found.push({ from, last: end - 1, median, worst, peak: (field) => level.peak(field, bin) });
  }

  rawShare(field: string): Uint16Array | undefined {
    return this.shares[field];
  }

  private grow(needed: number, fields: readonly string[]): void {
    const room = Math.max(this.number.length, 2 ** Math.ceil(Math.log2(needed)));
    if (room > this.number.length) {
      this.number = grown(this.number, new Uint32Array(room));
      this.begin = grown(this.begin, new Float64Array(room));
      this.wallMs = grown(this.wallMs, new Float32Array(room));
    }
    for (const field of fields) {
      const known = this.shares[field];
      if (!known || known.length < room)
        this.shares[field] = grown(known ?? new Uint16Array(0), new Uint16Array(room));
    }
  }

  private forget(): void {
    const half = this.length >> 1;
    for (const column of [this.number, this.begin, this.wallMs, ...Object.values(this.shares)])
      column.copyWithin(0, half, this.length);
    this.length -= half;
    this.levels = new Map();
  }
}

/** Neighboring steps that are drawn as one, by their places. */
export interface Column {
  from: number;
  last: number;
  median: number;
  worst: number;
  /** The largest share of any of them. */
  peak: (field: string) => number;
}

/** Bins of so many neighbors: which is their median, which takes longest, and the largest shares. */
export class Level {
  median = new Int32Array(0);
  worst = new Int32Array(0);
  private peaks: Shares = {};
  private done = new Uint8Array(0);

  constructor(
    private readonly steps: WatchedSteps,
    private readonly size: number,
  ) {}

  /** The largest share of any step in a bin, 0 to 1. */
  peak(field: string, bin: number): number {
    return (this.peaks[field]?.[bin] ?? 0) / UNITS;
  }

  /** What includes steps from a place on changes. */
  forget(place: number): void {
    this.done.fill(0, Math.floor(place / this.size));
  }

  fill(bin: number): void {
    this.grow(Math.max(bin + 1, Math.ceil(this.steps.length / this.size)));
    if (!this.done[bin]) this.fillBin(bin);
  }

  private fillBin(bin: number): void {
    const { steps, size } = this;
    const from = bin * size;
    const to = Math.min(from + size, steps.length);
    const walls = steps.wallMs.subarray(from, to);
    const sorted = walls.slice().sort();
    this.median[bin] = from + walls.indexOf(sorted[(sorted.length - 1) >> 1]!);
    this.worst[bin] = from + walls.indexOf(sorted[sorted.length - 1]!);
    for (const field of PEAKS) {
      const values = steps.rawShare(field);
      let most = 0;
      if (values) for (let i = from; i < to; i++) most = Math.max(most, values[i]!);
      this.peaks[field]![bin] = most;
    }
    this.done[bin] = 1;
  }

  private grow(needed: number): void {
    if (needed <= this.done.length && this.peaks.gc) return;
    const room = 2 ** Math.ceil(Math.log2(Math.max(needed, 16)));
    this.median = grown(this.median, new Int32Array(room));
    this.worst = grown(this.worst, new Int32Array(room));
    this.done = grown(this.done, new Uint8Array(room));
    for (const field of PEAKS)
      this.peaks[field] = grown(this.peaks[field] ?? new Uint16Array(0), new Uint16Array(room));
  }
}

/** The scale of the bars: the longest step, or four times the usual one where some are longer. */
export function topOf(steps: WatchedSteps, columns: readonly Column[]): number {
  const usual = Float32Array.from(columns, ({ median }) => steps.wallMs[median]!).sort();
  const most = columns.reduce((longest, { worst }) => Math.max(longest, steps.wallMs[worst]!), 0);
  return Math.min(most * 1.05, OUTLIER * (usual[usual.length >> 1] ?? 1)) || 1;
}

/** Whether so large a share of a step marks it. */
export function marks(field: string, share: number): boolean {
  return share > (field === "evaluation" || field === "checkpoint" ? 0 : MARKED);
}

/** Steps longer than so many times the usual do not set the scale. */
const OUTLIER = 4;

/** Means of each part of some steps, ms; `wall` is the whole. */
export function meansOf(
  steps: WatchedSteps,
  is: (place: number) => boolean,
): Record<string, number> {
  const fields = [...PARTS, ...OVERLAPS].map(([field]) => field);
  const sums: Record<string, number> = {
    wall: 0,
    ...Object.fromEntries(fields.map((one) => [one, 0])),
  };
  let count = 0;
  for (let place = 0; place < steps.length; place++) {
    if (!is(place)) continue;
    count++;
    sums.wall! += steps.wallMs[place]!;
    for (const field of fields) sums[field]! += steps.ms(field, place);
  }
  return Object.fromEntries(
    Object.entries(sums).map(([field, sum]) => [field, sum / (count || 1)]),
  );
}

/** The next place before or after one that a test holds for; -1 for none. */
export function nextPlace(
  length: number,
  from: number,
  by: 1 | -1,
  is: (place: number) => boolean,
): number {
  for (let place = from + by; place >= 0 && place < length; place += by)
    if (is(place)) return place;
  return -1;
}

const ROUND_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
];

/** Round times for an axis of hours, minutes and seconds, ns; at most so many gaps. */
export function clockTicks({ from, to }: Span, most: number): { at: number[]; step: number } {
  const length = to - from;
  const power = 10 ** Math.floor(Math.log10(length / most));
  const fine = [1, 2, 5, 10].map((one) => one * power).find((one) => length / one <= most)!;
  const whole = ROUND_S.map((s) => s * 1e9).find((one) => length / one <= most);
  const step = fine < 1e9 ? fine : (whole ?? Math.ceil(length / most / DAY_NS) * DAY_NS);
  const first = Math.ceil(from / step);
  return {
    at: Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => (first + i) * step),
    step,
  };
}

const DAY_NS = 86_400e9;

/** A time of the run, as fine as what is `apart`: `2:05 h`, `0:02:05`, `0:02:05.120`. */
export function clock(ns: number, apart: number): string {
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(apart / 1e9) - 1e-9), 0), 9);
  const seconds = Math.max(ns, 0) / 1e9;
  const total = digits ? seconds : Math.round(seconds);
  const [hours, minutes] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  const two = (value: number): string => String(value).padStart(2, "0");
  if (apart >= 60e9) return `${hours}:${two(minutes)}${"\u202f"}h`;
  const rest = (total - 3600 * hours - 60 * minutes).toFixed(digits);
  return `${hours}:${two(minutes)}:${rest.padStart(digits ? digits + 3 : 2, "0")}`;
}

const bufferOf = (base64: string): ArrayBuffer => bytesOf(base64).buffer;

function grown<Kind extends { set(from: Kind): void }>(from: Kind, to: Kind): Kind {
  to.set(from);
  return to;
}

/** How many of the first values, which ascend, are not above a limit. */
function firstAbove(values: ArrayLike<number>, length: number, limit: number): number {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
