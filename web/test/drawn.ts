import type { WireLevel } from "../src/api/types";
import { Level } from "../src/model/level";

/** One operation of a drawn level: `[name, start, end]`, and its device side where it has one. */
export interface Drawn {
  name: string;
  cpu?: [start: number, end: number];
  device?: [start: number, end: number];
  resource?: number;
  event?: number;
  stage?: number;
}

/** A level in the form of the server, drawn in a few lines; times as recorded, before the shift. */
export function drawnWire(all: Drawn[], rest: Partial<WireLevel> = {}): WireLevel {
  const strings = [...new Set(["event", "cpu", "device", ...all.map((one) => one.name)])];
  const column = <T>(of: (one: Drawn, index: number) => T): T[] => all.map(of);
  const code = (text: string): number => strings.indexOf(text);
  const span = (side?: [number, number]): number => (side ? side[1] - side[0] : 0);
  const withDevice = all.flatMap((one, index) => (one.device ? [{ one, index }] : []));
  const ends = all.flatMap((one) => [one.cpu?.[1] ?? 0, one.device?.[1] ?? 0]);
  const none = column(() => -1);
  return {
    path: "s0.0",
    name: "drawn",
    through: [],
    start_ns: 0,
    length_ns: Math.max(...ends, 1),
    shift_ns: 0,
    passed: 0,
    hidden: 0,
    resources: [
      { id: 0, kind: "cpu", name: "thread 1", device: null, rank: 0, busy_ns: 0, shown: true },
      { id: 7, kind: "device", name: "stream 7", device: 0, rank: 0, busy_ns: 0, shown: true },
    ],
    operations: {
      id: column((_, i) => `e${i}`),
      name: column((one) => code(one.name)),
      stage: column((one) => one.stage ?? -1),
      kind: column(() => code("event")),
      resource: column((one) => one.resource ?? 0),
      start_ns: column((one) => one.cpu?.[0] ?? -1),
      end_ns: column((one) => one.cpu?.[1] ?? -1),
      cpu_ns: column((one) => span(one.cpu)),
      self_ns: column((one) => span(one.cpu)),
      recompute_ns: column(() => 0),
      device_ns: column((one) => span(one.device)),
      bound_by: column((one) => code(span(one.device) > span(one.cpu) ? "device" : "cpu")),
      events: column(() => 1),
      event: column((one, i) => one.event ?? i),
      module: none,
      forward: none,
      backward: none,
      launch: none,
      count: column(() => 1),
      least_ns: none,
      mean_ns: none,
      most_ns: none,
      slowest: column(() => ""),
      opens: column(() => 1),
    },
    device: {
      operation: withDevice.map(({ index }) => index),
      resource: withDevice.map(() => 7),
      name: withDevice.map(({ one }) => code(one.name)),
      start_ns: withDevice.map(({ one }) => one.device![0]),
      end_ns: withDevice.map(({ one }) => one.device![1]),
      busy_ns: withDevice.map(({ one }) => span(one.device)),
    },
    strings,
    ...rest,
  };
}

export function drawnLevel(all: Drawn[], rest: Partial<WireLevel> = {}): Level {
  return new Level(drawnWire(all, rest));
}

/** Numbers that look random and are the same each time (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}
