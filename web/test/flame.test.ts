import { describe, expect, it } from "vitest";
import type { Boxes, Flame } from "../src/api/types";
import { changeOf, findingOfBoxes, firstEndingAfter, FlameLayout } from "../src/model/flame";

/** Boxes of `name value` in preorder, by their parents; the rest of the columns are plain. */
function flame(rows: [string, number, number][], more: Partial<Boxes> = {}): Flame {
  const fill = (value: number): number[] => rows.map(() => value);
  const strings = ["", "operator", "/me/train.py", ...rows.map(([name]) => name)];
  const boxes: Boxes = {
    node: rows.map((_, box) => box),
    parent: rows.map(([, parent]) => parent),
    name: rows.map((_, box) => box + 3),
    kind: fill(1),
    file: fill(0),
    line: fill(-1),
    value: rows.map(([, , value]) => value),
    own: fill(0),
    count: fill(1),
    hidden: fill(0),
    hot: fill(0),
    backward: fill(0),
    ...more,
  };
  return {
    by: "cpu",
    meaning: "CPU time",
    unit: "ns",
    up: false,
    start: 0,
    path: [{ node: 0, name: "all" }],
    total: rows[0]![2],
    total_before: null,
    nodes: rows.length,
    boxes,
    strings,
    measures: [],
    notes: [],
  };
}

const TREE = flame([
  ["all", -1, 100],
  ["linear", 0, 60],
  ["mm", 1, 40],
  ["add", 1, 10],
  ["relu", 0, 20],
]);

describe("a flame graph", () => {
  const layout = new FlameLayout(TREE);

  it("is walked by arrow keys: to the caller, the largest call, and beside", () => {
    const go = (...keys: string[]): string =>
      layout.name(keys.reduce((box, key) => layout.neighbor(box, key), 0));
    expect(go("ArrowUp")).toBe("all");
    expect(go("ArrowDown")).toBe("linear");
    expect(go("ArrowDown", "ArrowDown", "ArrowRight")).toBe("add");
    expect(go("ArrowDown", "ArrowDown", "ArrowLeft")).toBe("mm");
    expect(go("ArrowDown", "ArrowRight", "ArrowDown")).toBe("relu");
    expect(go("ArrowDown", "ArrowDown", "ArrowUp")).toBe("linear");
  });

  it("tells where the one way down forks", () => {
    const rows: [string, number, number][] = [
      ["all", -1, 100],
      ["main", 0, 100],
      ["step", 1, 99],
    ];
    expect(new FlameLayout(flame([...rows, ["a", 2, 60], ["b", 2, 39]])).forks()).toBe(3);
    expect(new FlameLayout(flame(rows)).forks()).toBe(0);
  });

  it("finds the box of a node, and the first one for a node that has none", () => {
    const zoomed = new FlameLayout(flame([["mm", -1, 40], ["add", 0, 9]], { node: [7, 12] })); // prettier-ignore
    expect([zoomed.boxOf(12), zoomed.boxOf(7), zoomed.boxOf(3)]).toEqual([1, 0, 0]);
  });

  it("lays boxes side by side below their caller, as wide as their share", () => {
    const spans = Array.from(layout.left, (left, box) => [left, layout.right[box]]);
    expect(spans).toEqual([
      [0, 1],
      [0, 0.6],
      [0, 0.4],
      [0.4, 0.5],
      [0.6, 0.8],
    ]);
    expect(Array.from(layout.depth)).toEqual([0, 1, 2, 2, 1]);
    expect(layout.rows.map((row) => Array.from(row))).toEqual([[0], [1, 4], [2, 3]]);
    expect(Array.from(layout.end)).toEqual([5, 4, 3, 4, 5]);
  });

  it("finds the box under a point, and none beside them", () => {
    expect([layout.at(0, 0.99), layout.at(1, 0.59), layout.at(1, 0.6)]).toEqual([0, 1, 4]);
    expect([layout.at(2, 0.45), layout.at(2, 0.55), layout.at(1, 0.9)]).toEqual([3, -1, -1]);
    expect([layout.at(3, 0.1), layout.at(-1, 0.1)]).toEqual([-1, -1]);
  });

  it("finds names in any case and counts what is inside a box found with it", () => {
    const found = layout.find(" LIN ")!;
    expect([Array.from(found.is), found.count, found.total]).toEqual([[0, 1, 0, 0, 0], 1, 60]);
    expect(layout.find("l")!.total).toBe(100);
    expect(layout.find("l")!.count).toBe(3);
    expect(layout.find("  ")).toBeNull();
  });

  it("goes to the source line of a box or of the nearest one above it", () => {
    const told = new FlameLayout(
      flame(
        [
          ["all", -1, 9],
          ["step", 0, 9],
          ["mm", 1, 9],
        ],
        { file: [0, 2, 0], line: [-1, 12, -1] },
      ),
    );
    expect(told.source(2)).toEqual({ file: "/me/train.py", line: 12 });
    expect(told.source(0)).toBeNull();
    expect(told.path(2)).toEqual([0, 1, 2]);
  });

  it("knows below which boxes something is too small to be told", () => {
    const told = new FlameLayout(flame([["all", -1, 9], ["a", 0, 5], ["b", 0, 4], ["2 more", 2, 1]], {
      node: [0, 1, 2, -1], hidden: [0, 0, 0, 2],
    })); // prettier-ignore
    expect([0, 1, 2].map((box) => told.hides(box))).toEqual([true, false, true]);
  });

  it("puts the first finding of a node on its box", () => {
    const one = { rule: "r", severity: "info" as const, what: "", advice: "" };
    const findings = [
      { ...one, id: 0, nodes: [2] },
      { ...one, id: 1, nodes: [1, 2] },
    ];
    expect(Array.from(findingOfBoxes(layout, findings))).toEqual([-1, 1, 0, -1, -1]);
  });

  it("is as wide as either of two profiles, and tells what changed", () => {
    const both = new FlameLayout(
      flame(
        [
          ["all", -1, 30],
          ["old", 0, 0],
          ["new", 0, 30],
        ],
        { before: [50, 50, 0], width: [80, 50, 30] },
      ),
    );
    expect(Array.from(both.right)).toEqual([1, 0.625, 1]);
    expect([0, 1, 2].map((box) => changeOf(both, box))).toEqual([-0.4, -1, 1]);
    expect(changeOf(layout, 1)).toBe(0);
  });
});

describe("a row of many boxes", () => {
  it("is searched, not walked", () => {
    const rows: [string, number, number][] = [["all", -1, 100_000]];
    for (let i = 0; i < 100_000; i++) rows.push([`n${i}`, 0, 1]);
    const layout = new FlameLayout(flame(rows));
    const row = layout.rows[1]!;
    for (const share of [0, 0.25, 0.5, 0.9999]) {
      const index = firstEndingAfter(layout, row, share);
      expect(layout.right[row[index]!]!).toBeGreaterThan(share);
      if (index > 0) expect(layout.right[row[index - 1]!]!).toBeLessThanOrEqual(share);
    }
    expect(layout.at(1, 0.5)).toBeGreaterThan(49_990);
  });
});
