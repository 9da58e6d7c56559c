import { describe, expect, it } from "vitest";
import type { Pair, Rectangles } from "../src/api/types";
import {
  changeOf,
  differences,
  isAlone,
  lengthOf,
  lostIn,
  neighbor,
  partnerOf,
  rectangleAt,
  rowsOf,
  sidesOf,
  spanOf,
  type Side,
} from "../src/model/pair";

/** Rectangles drawn as `[thread, start, duration]`. */
function drawn(length_us: number, rows: [number, number, number][]): Rectangles {
  return {
    length_us,
    thread: rows.map(([thread]) => thread),
    start_us: rows.map(([, start]) => start),
    duration_us: rows.map(([, , long]) => long),
    name: rows.map(() => "mm"),
    stage: rows.map(() => "forward"),
    kind: rows.map(() => null),
    tasks: rows.map(() => 1),
    event: rows.map((_, at) => at),
    partner: rows.map(() => -1),
    change_us: rows.map(() => 0),
  };
}

const thread = (name: string, rank: number) => ({ name, kind: "cpu", rank });

/** Two ranks; thread 3 is there after the change alone, thread 2 never works. */
const pair: Pair = {
  upper: "before",
  step: 5,
  other: 5,
  both_are: "",
  start_ns: 1000,
  before_us: 100,
  after_us: 80,
  threads: [thread("main", 1), thread("main", 0), thread("idle", 0), thread("new", 0)],
  before: drawn(100, [[0, 0, 60], [1, 0, 20], [1, 30, 40], [1, 90, 10]]),
  after: drawn(80, [[0, 0, 60], [1, 0, 20], [3, 50, 0.1]]),
}; // prettier-ignore

describe("two timelines", () => {
  const rows = rowsOf(pair);

  it("have the same rows, those of a rank together, without threads that are idle in both", () => {
    expect(rows.map((one) => [one.thread.rank, one.thread.name])).toEqual([
      [0, "main"],
      [0, "new"],
      [1, "main"],
    ]);
    expect(rows[0]).toMatchObject({ before: [1, 2, 3], after: [1] });
    expect(rowsOf(pair, 0.01).map((one) => one.thread.name)).toEqual(["main", "main"]);
  });

  it("have the scale of the longer one", () => {
    expect(lengthOf(pair)).toBe(100);
  });

  it("tell the rectangle at a time, or one that is near enough", () => {
    const at = (us: number, reach = 0): number =>
      rectangleAt(pair.before, rows[0]!.before, us, reach);
    expect([at(0), at(20), at(25), at(35), at(100)]).toEqual([1, 1, -1, 2, 3]);
    expect([at(24, 5), at(28, 5), at(80, 5)]).toEqual([1, 2, -1]);
    expect(rectangleAt(pair.before, [], 0, 9)).toBe(-1);
  });

  it("are walked by arrow keys, from a lane down to the other side of the same row", () => {
    const go = (...keys: string[]) =>
      keys.reduce<ReturnType<typeof neighbor>>(
        (spot, key) => neighbor(pair, rows, spot, key),
        null,
      );
    const first = { side: "before", row: 0, index: 1 };
    expect(go("ArrowRight")).toEqual(first);
    expect(go("ArrowRight", "ArrowRight")).toEqual({ ...first, index: 2 });
    expect(go("ArrowRight", "ArrowLeft", "ArrowUp")).toEqual(first);
    expect(go("x", "ArrowDown")).toEqual({ side: "after", row: 0, index: 1 });
    expect(go("x", "ArrowDown", "ArrowDown")).toMatchObject({ side: "after", row: 1 });
  });
});

/** Before: a, b, idle time and c. After: a, twice as long, c as before, and d. */
function paired(): Pair {
  const before = drawn(100, [[0, 0, 10], [0, 10, 10], [0, 20, 30], [0, 50, 10]]); // prettier-ignore
  const after = drawn(100, [[0, 0, 20], [0, 50, 10.5], [0, 70, 5]]); // prettier-ignore
  before.kind[2] = "idle";
  Object.assign(before, { partner: [0, -1, -1, 1], change_us: [-10, 0, 0, -0.5] });
  Object.assign(after, { partner: [0, 3, -1], change_us: [10, 0.5, 0] });
  return { ...pair, threads: [thread("stream 7", 0)], before, after };
}

describe("a pair", () => {
  const value = paired();
  const spot = (side: Side, index: number) => ({ side, row: 0, index });

  it("is placed where the step on screen begins", () => {
    expect(spanOf(value, spot("before", 1))).toEqual({ from: 11_000, to: 21_000 });
  });

  it("knows the partner of each piece on the other side", () => {
    expect(partnerOf(value, spot("before", 3))).toEqual(spot("after", 1));
    expect(partnerOf(value, spot("after", 2))).toBeNull();
  });

  it("has one change of a piece on both sides, of what it took before", () => {
    const longer = { us: 10, of: 10 };
    expect([changeOf(value, spot("before", 0)), changeOf(value, spot("after", 0))]).toEqual([longer, longer]); // prettier-ignore
  });

  it("tells work of one side from idle time, which has no partner either", () => {
    expect([0, 1, 2, 3].map((index) => isAlone(value.before, index))).toEqual([false, true, false, false]); // prettier-ignore
  });

  it("lists what differs by time: what is longer, gone and new, not what is nearly alike", () => {
    const found = differences(value, rowsOf(value));
    expect(found).toEqual([spot("after", 0), spot("before", 1), spot("after", 2)]);
    expect(found.map(({ side, index }) => lostIn(value, side, index))).toEqual([10, 10, 5]);
  });

  it("has the side on screen first", () => {
    expect([sidesOf(value), sidesOf({ ...value, upper: "after" })]).toEqual([["before", "after"], ["after", "before"]]); // prettier-ignore
  });
});
