import { describe, expect, it } from "vitest";
import type { Prediction, ListedChange, Parameter, Rectangles, WhatIf } from "../src/api/types";
import {
  compared,
  missing,
  moved,
  parseRequest,
  speed,
  valueOf,
  withValue,
} from "../src/model/changes";
import {
  lengthOf,
  neighbor,
  rectangleAt,
  rowsOf,
  timesOf,
  together,
} from "../src/model/rectangles";

const parameter = (name: string, usual: Parameter["default"]): Parameter => ({
  name,
  type: "str",
  default: usual,
  meaning: "",
});
const factor = parameter("factor", 2);

describe("a change as text", () => {
  it("is read as on the command line, values with further equals signs too", () => {
    expect(parseRequest("amp")).toEqual({ name: "amp", values: {} });
    expect(parseRequest("scale:select=kind=gemm,factor=0.5")).toEqual({
      name: "scale",
      values: { select: "kind=gemm", factor: "0.5" },
    });
  });

  it("leaves out what is as by default, or empty", () => {
    expect(withValue("bandwidth", factor, "4")).toBe("bandwidth:factor=4");
    expect(withValue("bandwidth:factor=4", factor, "8")).toBe("bandwidth:factor=8");
    expect(withValue("bandwidth:factor=4", factor, "2")).toBe("bandwidth");
    expect(withValue("bandwidth:factor=4", factor, " ")).toBe("bandwidth");
    expect(withValue("gist:lossy=true", parameter("lossy", false), "false")).toBe("gist");
  });

  it("shows what it says, else the default, else nothing", () => {
    expect(valueOf("bandwidth:factor=4", factor)).toBe("4");
    expect(valueOf("bandwidth", factor)).toBe("2");
    expect(valueOf("scale", parameter("select", null))).toBe("");
  });

  it("waits for parameters that have to be given", () => {
    const parameters = [parameter("select", null), parameter("factor", null), factor];
    const change = { name: "scale", parameters } as ListedChange;
    expect(missing("scale:factor=2", change)).toEqual(["select"]);
    expect(missing("scale:factor=2,select=name=x", change)).toEqual([]);
    expect(missing("unknown", undefined)).toEqual([]);
  });
});

describe("changes in their order", () => {
  it("move as far as there is room", () => {
    expect(moved(["a", "b", "c"], 2, -1)).toEqual(["a", "c", "b"]);
    expect(moved(["a", "b"], 0, -1)).toEqual(["a", "b"]);
    expect(moved(["a", "b"], 1, 1)).toEqual(["a", "b"]);
  });
});

describe("the answer", () => {
  it("compares the parts of both sides, the largest first", () => {
    expect(compared({ forward: 2, loss: 0 }, { backward: 5, loss: 0 })).toEqual([
      { name: "backward", before: 0, after: 5 },
      { name: "forward", before: 2, after: 0 },
    ]);
  });

  it("says how fast in words", () => {
    const of = (speedup: number | null): string => speed({ speedup } as Prediction);
    expect([of(1.4974), of(1.001), of(0.5), of(null)]).toEqual([
      "1.50× as fast",
      "as fast as now",
      "0.50× as fast",
      "no work is left",
    ]);
  });
});

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
  };
}

const thread = (name: string, rank: number) => ({ name, kind: "cpu", rank });

/** Two ranks; thread 3 is there after the change alone, thread 2 never works. */
const timeline: WhatIf["timeline"] = {
  threads: [thread("main", 1), thread("main", 0), thread("idle", 0), thread("new", 0)],
  before: drawn(100, [[0, 0, 60], [1, 0, 20], [1, 30, 40], [1, 90, 10]]),
  after: drawn(80, [[0, 0, 60], [1, 0, 20], [3, 50, 0.1]]),
}; // prettier-ignore

describe("two outlines", () => {
  const [cpu, device, communication] = [thread("CPU", 0), thread("device", 0), thread("nccl", 0)];

  it("become two timelines in which each kind of row is one row", () => {
    const before = {
      step: 1,
      rows: [0, 2],
      threads: [cpu, communication],
      timeline: drawn(9, [[1, 0, 9]]),
    };
    const after = {
      step: 4,
      rows: [0, 1],
      threads: [cpu, device],
      timeline: drawn(9, [[0, 0, 3], [1, 3, 6]]), // prettier-ignore
    };
    const both = together(before, after);
    expect(both.threads).toEqual([cpu, device, communication]);
    expect(both.before.thread).toEqual([2]);
    expect(both.after.thread).toEqual([0, 1]);
  });
});

describe("two timelines", () => {
  const rows = rowsOf(timeline);

  it("have the same rows, those of a rank together, without threads that are idle in both", () => {
    expect(rows.map((one) => [one.thread.rank, one.thread.name])).toEqual([
      [0, "main"],
      [0, "new"],
      [1, "main"],
    ]);
    expect(rows[0]).toMatchObject({ before: [1, 2, 3], after: [1] });
    expect(rowsOf(timeline, 0.01).map((one) => one.thread.name)).toEqual(["main", "main"]);
  });

  it("have the time of a stage by row, without rows that do not have it", () => {
    expect(timesOf(timeline, rows, "before", "forward")).toEqual([["main", 70], ["main", 60]]); // prettier-ignore
    expect(timesOf(timeline, rows, "after", "backward")).toEqual([]);
  });

  it("have the scale of the longer one", () => {
    expect(lengthOf(timeline)).toBe(100);
  });

  it("tell the rectangle at a time, or one that is near enough", () => {
    const at = (us: number, reach = 0): number =>
      rectangleAt(timeline.before, rows[0]!.before, us, reach);
    expect([at(0), at(20), at(25), at(35), at(100)]).toEqual([1, 1, -1, 2, 3]);
    expect([at(24, 5), at(28, 5), at(80, 5)]).toEqual([1, 2, -1]);
    expect(rectangleAt(timeline.before, [], 0, 9)).toBe(-1);
  });

  it("are walked by arrow keys, from the measured down into the predicted", () => {
    const go = (...keys: string[]) =>
      keys.reduce<ReturnType<typeof neighbor>>(
        (spot, key) => neighbor(timeline, rows, spot, key),
        null,
      );
    const first = { side: "before", row: 0, index: 1 };
    expect(go("ArrowRight")).toEqual(first);
    expect(go("ArrowRight", "ArrowRight")).toEqual({ ...first, index: 2 });
    expect(go("ArrowRight", "ArrowLeft", "ArrowUp")).toEqual(first);
    expect(go("x", "ArrowDown")).toEqual({ side: "before", row: 2, index: 0 });
    expect(go("x", "ArrowDown", "ArrowDown")).toEqual({ side: "after", row: 0, index: 1 });
    expect(go("x", "ArrowDown", "ArrowDown", "ArrowDown")).toMatchObject({ row: 1 });
  });
});
