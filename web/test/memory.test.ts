import { describe, expect, it } from "vitest";
import type { MemoryTile as Wire } from "../src/api/types";
import { memoryColor, memoryColumns, memoryTileOf, stackingOf } from "../src/model/memory";

const SCALE = { end_ns: 100, tile_ns: 128, deepest: 0, bins: 512 };

function tile(part: Partial<Wire>): Wire {
  return {
    zoom: 0, tile: 0, exact: true, start_ns: [], least: [], held: [], reserved_ns: [], reserved: [],
    ...part,
  }; // prettier-ignore
}

describe("columns of pixels", () => {
  const wire = tile({
    start_ns: [0, 10, 11, 50],
    least: [5, 9, 3, 4],
    held: [
      [5, 8, 3, 0],
      [0, 1, 0, 4],
    ],
    reserved_ns: [0, 12],
    reserved: [16, 32],
  });
  const piece = { tile: memoryTileOf(SCALE, wire), from: 0, to: 128 };

  it("show the moment of the maximum, all groups at once, and the least", () => {
    const found = memoryColumns([piece], { from: 0, to: 128 }, 2, 2);
    expect([...found.most]).toEqual([9, 4]);
    expect(found.held.map((one) => [...one])).toEqual([
      [8, 0],
      [1, 4],
    ]);
    expect([...found.least]).toEqual([3, 4]);
    expect([...found.reserved]).toEqual([32, 32]);
  });

  it("hold a value until the next change", () => {
    const found = memoryColumns([piece], { from: 8, to: 12 }, 2, 4);
    expect([...found.most]).toEqual([5, 5, 9, 3]);
    expect([...found.reserved]).toEqual([16, 16, 16, 16]);
  });

  it("are unknown where no tile has arrived", () => {
    expect([...memoryColumns([], { from: 0, to: 10 }, 1, 2).most]).toEqual([NaN, NaN]);
  });
});

it("kinds that last stack below those that pass", () => {
  const names = ["activations", "unknown", "weights"];
  expect(stackingOf("kind", names).map((at) => names[at])).toEqual([
    "weights", "activations", "unknown",
  ]); // prettier-ignore
  expect(stackingOf("module", names)).toEqual([0, 1, 2]);
});

it("a kind has the color of its stage, a module or line a shade, and the chosen one the accent", () => {
  expect(memoryColor("kind", "activations", 3)).toBe("stage-forward");
  expect(memoryColor("kind", "weights", 0)).toBe("stage-other");
  expect(memoryColor("line", "a.py:1", 1, 2)).toMatch(/^shade-[1-5]$/);
  expect(memoryColor("line", "a.py:1", 2, 2)).toBe("accent");
});
