import { describe, expect, it } from "vitest";
import type { ModuleNode } from "../src/api/types";
import { holds, join, last, parent, prefixes, stepOf } from "../src/base/path";
import { costOf, deviceOf, hottestOf, leavesOf } from "../src/model/modules";
import { sorted } from "../src/model/sort";
import { contrast, parseHex, readableOn } from "../src/render/palette";

describe("a path", () => {
  it("leads from the trace to an operation", () => {
    expect(prefixes("s5.0/t3/e7")).toEqual(["", "s5.0", "s5.0/t3", "s5.0/t3/e7"]);
    expect([parent("s5.0/t3"), parent("s5.0"), parent("")]).toEqual(["s5.0", "", ""]);
    expect([join("", "s5.0"), join("s5.0", "t3"), last("s5.0/t3")]).toEqual([
      "s5.0",
      "s5.0/t3",
      "t3",
    ]);
  });

  it("holds itself and what is inside, and no neighbor whose name begins alike", () => {
    expect([
      holds("s5.0/t3", "s5.0/t3/e1"),
      holds("s5.0/t3", "s5.0/t33"),
      holds("", "s5.0"),
    ]).toEqual([true, false, true]);
  });

  it("tells step and rank", () => {
    expect(stepOf("s12.3/t4")).toEqual({ step: 12, rank: 3 });
    expect(stepOf("")).toBeNull();
  });
});

describe("rows are sorted", () => {
  const rows = [{ v: 2 }, { v: null }, { v: 10 }, { v: 1 }];
  it("with nothing last, either way", () => {
    expect(sorted(rows, (row) => row.v, true).map((row) => row.v)).toEqual([10, 2, 1, null]);
    expect(sorted(rows, (row) => row.v, false).map((row) => row.v)).toEqual([1, 2, 10, null]);
  });
  it("names by the numbers in them", () => {
    expect(sorted(["l10", "l9"], (row) => row, false)).toEqual(["l9", "l10"]);
  });
});

function module(
  path: string,
  device: number,
  children: ModuleNode[] = [],
  rest: Partial<ModuleNode> = {},
): ModuleNode {
  return {
    name: last(path.replaceAll(".", "/")) || "model", kind: "C", path, count: 1, modules: [], calls: 1,
    forward_cpu_ms: 1, forward_device_ms: device, backward_cpu_ms: 0, backward_device_ms: device,
    outside_cpu_ms: 0, outside_device_ms: 0,
    recompute_cpu_ms: 0, recompute_device_ms: 0, flops: null, intensity: null, parameters: null, file: "", line: null,
    call_file: "", call_line: null, spread_ms: [0, 0], copies: [], children, ...rest,
  }; // prettier-ignore
}

describe("the model tree", () => {
  const copies = [module("layers.0", 1), module("layers.1", 2)];
  const conv = module("layers.conv", 3, [], { count: 2, copies });
  const layers = module("layers", 4, [conv], { count: 2 });
  const tree = [module("", 10, [module("stem", 1), layers])];

  it("knows the costliest of its siblings, by forward and backward together", () => {
    expect([...hottestOf(tree)].map((node) => node.path)).toEqual(["layers"]);
    expect(costOf(tree[0]!)).toBe(20);
  });

  it("is flat as its leaves, each copy alone, and what the others do themselves", () => {
    const leaves = leavesOf(tree).map((node) => [node.name, deviceOf(node)]);
    expect(leaves).toEqual([
      ["model (own)", 10],
      ["stem", 2],
      ["layers (own)", 2],
      ["layers.0", 2],
      ["layers.1", 4],
    ]);
    expect(leaves.reduce((total, [, device]) => total + Number(device), 0)).toBe(20);
  });
});

describe("text on a color", () => {
  it.each([
    "#cdd5df",
    "#f4d59f",
    "#ee9145",
    "#cf3a1d",
    "#46505e",
    "#6e5730",
    "#bd6a26",
    "#f4633f",
    "#9a1fa8",
    "#e58af2",
  ])("on %s has a contrast of 4.5 or more", (color) => {
    const under = parseHex(color);
    expect(contrast(parseHex(readableOn(under)), under)).toBeGreaterThanOrEqual(4.5);
  });
});
