import { describe, expect, it } from "vitest";
import type { StepColumns } from "../src/api/watch_types";
import { clock, clockTicks, meansOf, topOf, WatchedSteps } from "../src/model/watched";

const MS = 1e6;

function base64(values: Uint16Array | Float32Array): string {
  return Buffer.from(values.buffer).toString("base64");
}

/** Columns of steps that follow one another. */
function columnsOf(
  walls: number[],
  rest: Partial<StepColumns> & { gc?: number[]; gaps?: number[]; missing?: number[] } = {},
): StepColumns {
  const zeros = walls.map(() => 0);
  const share = (values: number[]): string => base64(Uint16Array.from(values, (one) => 4000 * one));
  const { gc = zeros, gaps = zeros, missing = zeros, ...said } = rest;
  return {
    first: 0,
    count: walls.length,
    begin_ns: 0,
    skipped: base64(Uint16Array.from(missing)),
    gap_ms: base64(Float32Array.from(gaps)),
    wall_ms: base64(Float32Array.from(walls)),
    shares: { gc: share(gc), input: share(walls.map(() => 0.25)) },
    ...said,
  };
}

function stepsOf(...all: StepColumns[]): WatchedSteps {
  const steps = new WatchedSteps();
  for (const one of all) steps.append(one);
  return steps;
}

describe("steps of a run", () => {
  it("have their numbers and times, also after gaps and missing ones", () => {
    const steps = stepsOf(
      columnsOf([10, 20, 30], { first: 7, begin_ns: 5 * MS, gaps: [0, 2, 0], missing: [0, 0, 4] }),
    );
    expect([...steps.number.slice(0, 3)]).toEqual([7, 8, 13]);
    expect([...steps.begin.slice(0, 3)].map((ns) => ns / MS)).toEqual([5, 17, 37]);
    expect(steps.placeOf(13)).toBe(2);
    expect(steps.placeAt(20 * MS)).toBe(1);
  });

  it("are appended with the gap and the steps missing before them", () => {
    const more = columnsOf([10], { first: 5, begin_ns: 23 * MS, gaps: [3], missing: [3] });
    const steps = stepsOf(columnsOf([10, 10]), more);
    expect([...steps.number.slice(0, 3)]).toEqual([0, 1, 5]);
    expect(steps.begin[2]! / MS).toBe(23);
  });

  it("of which one among 100,000 is slow have it in a column", () => {
    const walls = Array.from({ length: 100_000 }, () => 10);
    walls[54_321] = 500;
    const steps = stepsOf(columnsOf(walls));
    const columns = steps.columns({ from: 0, to: steps.endOf(99_999) }, 800);
    expect(columns.length).toBeLessThan(1200);
    expect(columns.filter((one) => one.worst === 54_321)).toHaveLength(1);
    expect(columns.every((one) => steps.wallMs[one.median] === 10)).toBe(true);
    expect(topOf(steps, columns)).toBe(40);
  });

  it("that are long have a column of their own, wherever they are", () => {
    const walls = Array.from({ length: 4096 }, () => 1);
    walls[1001] = 4096;
    const steps = stepsOf(columnsOf(walls));
    const columns = steps.columns({ from: 0, to: steps.endOf(4095) }, 512);
    expect(columns.find((one) => one.worst === 1001)).toMatchObject({ from: 1001, last: 1001 });
  });

  it("are drawn again where steps were appended to their column", () => {
    const steps = stepsOf(columnsOf([1, 1, 1, 1, 1]));
    const last = () => steps.columns({ from: 0, to: 1e12 }, 2).at(-1)!;
    expect(steps.wallMs[last().worst]).toBe(1);
    steps.append(columnsOf([9], { first: 5, begin_ns: 5 * MS, gc: [0.5] }));
    expect(steps.wallMs[last().worst]).toBe(9);
    expect(last().peak("gc")).toBe(0.5);
  });

  it("show what is too little to be marked, but is to be seen", () => {
    const some = stepsOf(columnsOf([10, 10], { gc: [0, 0.01] }));
    expect([some.has("gc"), some.isSeen("gc")]).toEqual([false, true]);
    expect(stepsOf(columnsOf([10, 10])).isSeen("gc")).toBe(false);
  });

  it.each([
    ["gc", [0.01, 0.01], false],
    ["gc", [0.01, 0.3], true],
  ])("%s with shares %j: marked %s", (field, gc, expected) => {
    expect(stepsOf(columnsOf([10, 10], { gc })).has(field)).toBe(expected);
  });

  it("have means of their parts", () => {
    const steps = stepsOf(columnsOf([10, 30], { gc: [0, 0.5] }));
    expect(meansOf(steps, () => true)).toMatchObject({ wall: 20, gc: 7.5, input: 5, queued: 0 });
    expect(meansOf(steps, (place) => place === 0)).toMatchObject({ wall: 10, gc: 0 });
  });

  it("leave the page once they are too many, the oldest first", () => {
    const steps = new WatchedSteps(10);
    for (const first of [0, 4, 8])
      steps.append(columnsOf([1, 1, 1, 1], { first, begin_ns: first * MS }));
    expect([steps.length, steps.number[0], steps.last]).toEqual([8, 4, 11]);
  });
});

describe("the axis", () => {
  it.each([
    [4 * 3600e9, 8, 1800e9, "2:30\u202fh"],
    [600e9, 10, 60e9, "2:30\u202fh"],
    [60e9, 6, 10e9, "2:30:00"],
    [0.5e9, 5, 0.1e9, "2:30:00.0"],
  ])("of %d ns and at most %d gaps has ticks each %d ns", (length, most, step, text) => {
    expect(clockTicks({ from: 0, to: length }, most).step).toBe(step);
    expect(clock(9000e9, step)).toBe(text);
  });
});
