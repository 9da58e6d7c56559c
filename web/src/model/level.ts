import type { ResourceRow, WireLevel } from "../api/types";
import { words } from "../base/format";
import { join, last, stepOf } from "../base/path";
import type { Span } from "./span";

/** Shades of heat: how much of its parent's time an operation takes. */
export const HEATS = 16;
/** From this share of the parent on, heat grows no more. */
const HOTTEST_SHARE = 0.5;
/** Of a row at most so many bars may have a name. */
const NAMED = 300;

/** One operation of a level, as the page talks about it. */
export interface Operation {
  index: number;
  path: string;
  name: string;
  kind: string;
  start: number;
  end: number;
  cpu: number;
  self: number;
  device: number;
  recompute: number;
  boundBy: string;
  events: number;
  event: number;
  module: number;
  opens: boolean;
  count: number;
  least: number;
  mean: number;
  most: number;
  slowest: string;
}

/**
 * The bars of one thread or stream, by start, in nanoseconds since the level's start.
 *
 * `operation` says which operation each bar belongs to; a device row may have bars that overlap.
 */
export interface Row {
  key: string;
  side: "cpu" | "device";
  kind: string;
  resource: number;
  rank: number;
  /** Number of its device; null for a thread, or all devices of a rank. */
  device: number | null;
  name: string;
  /** How much earlier than recorded its bars are drawn. */
  earlier: number;
  start: Float64Array;
  end: Float64Array;
  /** The largest end so far, which makes searching overlapping bars possible. */
  reach: Float64Array;
  busy: Float64Array;
  heat: Uint8Array;
  /** Number of its stage, -1 for none. */
  stage: Int8Array;
  operation: Int32Array;
  names: string[];
  /** The longest bars, longest first; enough of them to be named. */
  longest: number[];
}

/** A level as the page uses it: operations by number, rows of bars. */
export class Level {
  readonly path: string;
  /** Nanoseconds since the trace's start. */
  readonly start: number;
  readonly length: number;
  /** From its start to the end of its last work, which may run on after its end on the CPU. */
  readonly reach: number;
  readonly size: number;
  readonly rows: Row[];

  /** @param aligned whether the device side is drawn below the calls that launched it. */
  constructor(
    readonly wire: WireLevel,
    aligned = false,
  ) {
    this.path = wire.path;
    this.length = Math.max(wire.length_ns, 1);
    this.size = wire.operations.id.length;
    this.start = wire.start_ns;
    // Steps of a trace have no common lag.
    this.rows = makeRows(wire, this.length, aligned && wire.path ? wire.shift_ns : 0);
    this.reach = this.rows.reduce((most, row) => Math.max(most, row.reach.at(-1)!), this.length);
  }

  operation(index: number): Operation {
    const { operations: columns, strings } = this.wire;
    return {
      index,
      path: join(this.path, columns.id[index]!),
      name: this.name(index),
      kind: strings[columns.kind[index]!]!,
      start: columns.start_ns[index]!,
      end: columns.end_ns[index]!,
      cpu: columns.cpu_ns[index]!,
      self: columns.self_ns[index]!,
      device: columns.device_ns[index]!,
      recompute: columns.recompute_ns[index]!,
      boundBy: strings[columns.bound_by[index]!]!,
      events: columns.events[index]!,
      event: columns.event[index]!,
      module: columns.module[index]!,
      opens: columns.opens[index] !== 0,
      count: columns.count[index]!,
      least: columns.least_ns[index]!,
      mean: columns.mean_ns[index]!,
      most: columns.most_ns[index]!,
      slowest: columns.slowest[index]!,
    };
  }

  /** A stage in the words of a reader, all else as it is called. */
  name(index: number): string {
    return nameOf(this.wire, index, this.wire.operations.name[index]!);
  }

  /** Wrappers between the level above and this one that have names of their own. */
  get through(): string[] {
    return this.wire.through.filter((name) => name !== this.wire.name);
  }

  /** What the level is the inside of. */
  get title(): string {
    return /^t\d+$/.test(last(this.path)) ? words(this.wire.name) : this.wire.name || "trace";
  }

  all(): Operation[] {
    return Array.from({ length: this.size }, (_, index) => this.operation(index));
  }

  /** The number of the operation with a path, -1 where the level lists none. */
  find(path: string): number {
    const id =
      this.path && path.startsWith(`${this.path}/`) ? path.slice(this.path.length + 1) : path;
    return this.wire.operations.id.indexOf(id);
  }

  /** Operations from left to right, those without a CPU side where their device work is. */
  inOrder(): number[] {
    const first = firstTimes(this);
    return Array.from(first.keys()).sort((a, b) => first[a]! - first[b]! || a - b);
  }

  /** The operation that takes longest, on one side or on the longer of both; -1 where none. */
  longest(side?: "cpu" | "device"): number {
    const { cpu_ns, device_ns } = this.wire.operations;
    const cost = (i: number): number =>
      side === "cpu"
        ? cpu_ns[i]!
        : side === "device"
          ? device_ns[i]!
          : Math.max(cpu_ns[i]!, device_ns[i]!);
    let best = -1;
    for (let i = 0; i < this.size; i++) if (cost(i) > (best < 0 ? 0 : cost(best))) best = i;
    return best;
  }
}

/** What an opened operation takes on both sides; of a list of steps, which follow one another, their sums. */
export function timesOf(level: Level, shown: readonly Level[]): { cpu: number; device: number } {
  for (const one of shown) {
    const at = one === level ? -1 : one.find(level.path);
    if (at >= 0) return one.operation(at);
  }
  const sum = (values: number[]): number => values.reduce((all, one) => all + one, 0);
  const { cpu_ns, device_ns } = level.wire.operations;
  return { cpu: sum(cpu_ns), device: sum(device_ns) };
}

/** Above this share of its span a bar counts as busy throughout. */
const BUSY_THROUGHOUT = 0.95;

/** The share of a bar's span in which it is busy; 1 where it is throughout. */
export function busyShare(row: Row, bar: number): number {
  const span = row.end[bar]! - row.start[bar]!;
  const share = span > 0 ? row.busy[bar]! / span : 1;
  return share < BUSY_THROUGHOUT ? share : 1;
}

/** From where to where an operation reaches on all rows, ns since the trace's start. */
export function spanOf(level: Level, operation: number): Span | null {
  let [from, to] = [Infinity, -Infinity];
  for (const row of level.rows) {
    row.operation.forEach((one, bar) => {
      if (one !== operation) return;
      from = Math.min(from, row.start[bar]!);
      to = Math.max(to, row.end[bar]!);
    });
  }
  return to > from ? { from: level.start + from, to: level.start + to } : null;
}

/** 0 to HEATS-1; a square root, so that 5 % and 20 % can be told apart. */
export function heatOf(share: number): number {
  const value = Math.sqrt(Math.min(Math.max(share, 0) / HOTTEST_SHARE, 1));
  return Math.min(Math.floor(value * HEATS), HEATS - 1);
}

/** A stage in words; its device work may have a name of its own. */
function nameOf(wire: WireLevel, operation: number, name: number): string {
  const { operations, strings } = wire;
  const own = name === operations.name[operation];
  const text = strings[name]!;
  return own && strings[operations.kind[operation]!] === "stage" ? words(text) : text;
}

interface Bars {
  side: Row["side"];
  resource: ResourceRow;
  start: number[];
  end: number[];
  busy: number[];
  operation: number[];
  name: number[];
}

function makeRows(wire: WireLevel, length: number, lag: number): Row[] {
  const shown = wire.resources.filter((one) => one.shown);
  const cpu = shown.filter((one) => one.kind === "cpu" || one.kind === "rank");
  const bars = new Map<string, Bars>();
  const room = (side: Row["side"], resource: ResourceRow): void => {
    const none = { start: [], end: [], busy: [], operation: [], name: [] };
    bars.set(`${side}${resource.id}`, { side, resource, ...none });
  };
  for (const one of cpu) {
    room("cpu", one);
    if (one.kind === "rank") room("device", one);
  }
  for (const one of shown) if (!cpu.includes(one)) room("device", one);
  fillCpu(wire, bars);
  fillDevice(wire, bars);
  return [...bars.values()]
    .filter((one) => one.start.length)
    .map((one) => finish(one, wire, length, one.side === "device" ? lag : 0));
}

function fillCpu(wire: WireLevel, bars: Map<string, Bars>): void {
  const { resource, start_ns, end_ns, cpu_ns, name } = wire.operations;
  for (let i = 0; i < resource.length; i++) {
    const row = bars.get(`cpu${wire.path === "" ? rankOf(wire, i) : resource[i]!}`);
    if (row && start_ns[i]! >= 0) push(row, i, start_ns[i]!, end_ns[i]!, cpu_ns[i]!, name[i]!);
  }
}

/** A step runs on no one thread: its row is its rank's. */
function rankOf(wire: WireLevel, operation: number): number {
  return stepOf(wire.operations.id[operation]!)?.rank ?? 0;
}

/** A step's device work stands below its rank as one bar, from the first stream to the last. */
function fillSteps(wire: WireLevel, bars: Map<string, Bars>): void {
  const { operation, start_ns, end_ns } = wire.device;
  const spans = new Map<number, [from: number, to: number]>();
  operation.forEach((step, i) => {
    const [from, to] = spans.get(step) ?? [Infinity, 0];
    spans.set(step, [Math.min(from, start_ns[i]!), Math.max(to, end_ns[i]!)]);
  });
  for (const [step, [from, to]] of spans) {
    const row = bars.get(`device${rankOf(wire, step)}`);
    const { device_ns, name } = wire.operations;
    if (row) push(row, step, from, to, device_ns[step]!, name[step]!);
  }
}

function fillDevice(wire: WireLevel, bars: Map<string, Bars>): void {
  if (wire.path === "") {
    fillSteps(wire, bars);
    return;
  }
  const { operation, resource, start_ns, end_ns, busy_ns, name } = wire.device;
  for (let i = 0; i < operation.length; i++) {
    const row = bars.get(`device${resource[i]!}`);
    if (row) push(row, operation[i]!, start_ns[i]!, end_ns[i]!, busy_ns[i]!, name[i]!);
  }
}

function push(
  row: Bars,
  operation: number,
  start: number,
  end: number,
  busy: number,
  name: number,
) {
  row.operation.push(operation);
  row.start.push(start);
  row.end.push(end);
  row.busy.push(busy);
  row.name.push(name);
}

function finish(bars: Bars, wire: WireLevel, length: number, earlier: number): Row {
  const order = Array.from(bars.start.keys()).sort(
    (a, b) => bars.start[a]! - bars.start[b]! || bars.end[b]! - bars.end[a]!,
  );
  const end = Float64Array.from(order, (i) => bars.end[i]! - earlier);
  let furthest = -Infinity;
  const busy = Float64Array.from(order, (i) => bars.busy[i]!);
  return {
    key: `${bars.side}${bars.resource.id}`,
    side: bars.side,
    kind: bars.resource.kind,
    resource: bars.resource.id,
    rank: bars.resource.rank,
    device: bars.resource.device,
    name: bars.resource.name,
    earlier,
    start: Float64Array.from(order, (i) => bars.start[i]! - earlier),
    end,
    reach: end.map((one) => (furthest = Math.max(furthest, one))),
    busy,
    heat: Uint8Array.from(order, (i) => heatOf(bars.busy[i]! / length)),
    stage: Int8Array.from(order, (i) => wire.operations.stage[bars.operation[i]!]!),
    operation: Int32Array.from(order, (i) => bars.operation[i]!),
    names: order.map((i) => nameOf(wire, bars.operation[i]!, bars.name[i]!)),
    longest: [...busy.keys()].sort((a, b) => busy[b]! - busy[a]!).slice(0, NAMED),
  };
}

function firstTimes(level: Level): Float64Array {
  const first = new Float64Array(level.size).fill(Infinity);
  for (const row of level.rows) {
    row.operation.forEach((operation, bar) => {
      if (row.start[bar]! < first[operation]!) first[operation] = row.start[bar]!;
    });
  }
  return first;
}
