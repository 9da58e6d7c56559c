import { describe, expect, it } from "vitest";
import { barAt } from "../src/model/hit";
import { BAR_HEIGHT, labelAt, layOut, rowAt } from "../src/model/layout";
import { heatOf, HEATS, Level, spanOf, timesOf } from "../src/model/level";
import { drawnLevel, drawnWire } from "./drawn";

const whole = { from: 0, to: 1000 };
const measure = (text: string): number => text.length * 7;

describe("a level", () => {
  const level = drawnLevel(
    [
      { name: "forward", cpu: [0, 40], device: [30, 60] },
      { name: "kernel", device: [60, 95] },
      { name: "backward", cpu: [40, 70], device: [95, 130] },
    ],
    { shift_ns: 30, length_ns: 100 },
  );

  it("has a row for each side, the device where it ran", () => {
    const rows = level.rows.map(({ key, start }) => [key, [...start]]);
    expect(rows).toEqual([
      ["cpu0", [0, 40]],
      ["device7", [30, 60, 95]],
    ]);
  });

  it("has its device work below what launched it where the sides are aligned", () => {
    const aligned = new Level(level.wire, true);
    expect(aligned.rows.map(({ start, earlier }) => [...start, earlier])).toEqual([
      [0, 40, 0],
      [0, 30, 65, 30],
    ]);
    expect(aligned.reach).toBe(100);
  });

  it("names the wrappers that are called otherwise than what they wrap", () => {
    const wrapped = drawnLevel([], { name: "backward", through: ["backward", "Engine.run"] });
    expect(wrapped.through).toEqual(["Engine.run"]);
  });

  it("takes what its operation does, whose parts may work at once", () => {
    const above = drawnLevel([{ name: "step", cpu: [0, 100], device: [30, 100] }], { path: "" });
    above.wire.operations.id = ["s0.0"];
    const took = ({ cpu, device }: ReturnType<typeof timesOf>) => [cpu, device];
    expect(took(timesOf(level, [above, level]))).toEqual([100, 70]);
    expect(took(timesOf(level, [level]))).toEqual([70, 100]);
  });

  it("reaches to the end of its device work, and so does an operation", () => {
    expect(level.reach).toBe(130);
    expect(spanOf(level, 2)).toEqual({ from: 40, to: 130 });
  });

  it("orders operations by time, device work that the CPU lacks among them", () => {
    expect(level.inOrder().map((one) => level.operation(one).name)).toEqual([
      "forward",
      "backward",
      "kernel",
    ]);
  });

  it("finds operations by their path, and the longest on each side", () => {
    expect(level.find("s0.0/e2")).toBe(2);
    expect(level.find("s0.0/e9")).toBe(-1);
    expect(level.operation(level.longest("cpu")).name).toBe("forward");
    expect(level.longest("device")).toBe(1);
  });
});

it("puts each rank's steps in one row and their device work in one below", () => {
  const wire = drawnWire(
    [
      { name: "step 0", cpu: [0, 50], device: [10, 60] },
      { name: "step 0", cpu: [0, 80], device: [20, 90] },
    ],
    {
      path: "",
      resources: [0, 3].map((id) => ({
        id,
        kind: "rank",
        name: `rank ${id}`,
        device: null,
        rank: id,
        busy_ns: 0,
        shown: true,
      })),
    },
  );
  wire.operations.id = ["s0.0", "s0.3"];
  const { rows } = new Level(wire);
  expect(rows.map(({ key, rank }) => [key, rank])).toEqual([
    ["cpu0", 0],
    ["device0", 0],
    ["cpu3", 3],
    ["device3", 3],
  ]);
});

it("grows hotter with the share of the parent, up to half of it", () => {
  expect(heatOf(0)).toBe(0);
  expect(heatOf(0.5)).toBe(HEATS - 1);
  expect(heatOf(0.9)).toBe(HEATS - 1);
  expect(heatOf(0.05)).toBeLessThan(heatOf(0.2));
});

describe("the bar below a pointer", () => {
  const { rows } = drawnLevel([
    { name: "outer", cpu: [0, 100] },
    { name: "inner", cpu: [20, 30] },
    { name: "thin", cpu: [200, 201] },
  ]);
  const at = (time: number, slack = 0): string | undefined => {
    const bar = barAt(rows[0]!, time, slack);
    return bar < 0 ? undefined : rows[0]!.names[bar];
  };

  it("is the shortest that holds the time", () => {
    expect([at(10), at(25), at(60)]).toEqual(["outer", "inner", "outer"]);
  });

  it("is a thin one within reach, and none beyond", () => {
    expect([at(204, 5), at(204, 2), at(150, 5)]).toEqual(["thin", undefined, undefined]);
  });
});

it("tells stages in words, and device work of theirs by its own name", () => {
  const wire = drawnWire([{ name: "data_loading", cpu: [0, 90], device: [10, 60] }]);
  wire.strings.push("stage", "Memcpy_HtoD");
  wire.operations.kind = [wire.strings.length - 2];
  const names = (): string[][] => new Level(wire).rows.map((row) => row.names);
  expect(names()).toEqual([["data loading"], ["data loading"]]);
  wire.device.name = [wire.strings.length - 1];
  expect(names()).toEqual([["data loading"], ["Memcpy_HtoD"]]);
});

it("puts a name on what is seen of a bar, where the next one lies over it", () => {
  const level = drawnLevel([
    { name: "step 1", cpu: [0, 600] },
    { name: "step 2", cpu: [300, 1000] },
  ]);
  const [first] = layOut(level, {
    width: 1000,
    window: whole,
    strip: null,
    measure,
  }).rows[0]!.labels.filter((one) => one.bar === 0);
  expect(first!.left + first!.width).toBeLessThanOrEqual(300);
});

describe("laid out for a width", () => {
  const level = drawnLevel([
    { name: "forward", cpu: [0, 900] },
    { name: "zero_grad", cpu: [900, 905] },
    { name: "backward", cpu: [905, 1000] },
  ]);
  const names = (width: number): [string, number][] =>
    layOut(level, { width, window: whole, strip: null, measure }).rows[0]!.labels.map((one) => [
      one.text,
      one.lane,
    ]);

  it("names stand inside where there is room", () => {
    expect(names(1000)).toContainEqual(["backward", 0]);
    expect(names(1000)).toContainEqual(["zero_grad", 1]);
  });

  it("a very long name by its start", () => {
    const long = drawnLevel([{ name: "kernel_".repeat(30), cpu: [0, 500] }]);
    const { labels } = layOut(long, { width: 1000, window: whole, strip: null, measure }).rows[0]!;
    expect(labels.map(({ text, lane }) => [text, lane])).toEqual([
      [`${"kernel_".repeat(6).slice(0, 40)}…`, 0],
    ]);
  });

  it("and elsewhere after the window became narrow", () => {
    expect(names(300)).not.toContainEqual(["backward", 0]);
  });

  it("names stay in sight of what is visible", () => {
    const window = { from: 850, to: 950 };
    const { labels } = layOut(level, { width: 1000, window, strip: null, measure }).rows[0]!;
    expect(labels.map((one) => one.text.split(" ")[0])).toContain("forward");
    for (const one of labels) expect(one.left).toBeGreaterThanOrEqual(0);
  });

  it("a level that is not the lowest is one row, that of what is opened", () => {
    const both = drawnLevel([
      { name: "a", cpu: [0, 10] },
      { name: "b", device: [10, 20] },
    ]);
    const rows = (strip: number): string[] =>
      layOut(both, { width: 100, window: whole, strip, measure }).rows.map((one) => one.row.key);
    expect([rows(0), rows(1)]).toEqual([["cpu0"], ["device7"]]);
  });

  it("a label below its bar can be clicked, and a gap between rows cannot", () => {
    const layout = layOut(level, { width: 1000, window: whole, strip: null, measure });
    const label = layout.rows[0]!.labels.find((one) => one.lane === 1)!;
    expect(labelAt(layout, label.left + 3, BAR_HEIGHT + 5)?.operation).toBe(1);
    expect(labelAt(layout, 5, BAR_HEIGHT + 5)).toBeNull();
    expect([rowAt(layout, 5), rowAt(layout, BAR_HEIGHT + 1)]).toEqual([0, -1]);
  });
});
