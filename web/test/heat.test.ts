import { describe, expect, it } from "vitest";
import {
  bounds,
  columnsOf,
  ends,
  heatOf,
  heatOfExcess,
  latestRank,
  median,
  placeIn,
  runsOf,
} from "../src/model/heat";

describe("a heat map of ranks", () => {
  const heat = heatOf(["forward", "backward"], [[10, 10, 15, 10], [20, 21, 20, 20]], 50); // prettier-ignore

  it("shows how much longer each rank takes than the median rank, as a share of the step", () => {
    expect(heat.excess).toEqual([
      [0, 0, 0.1, 0],
      [0, 0.02, 0, 0],
    ]);
    expect(heat.most).toBe(0.1);
  });

  it("draws noise palely", () => {
    expect(heatOf(["forward"], [[10, 10.01]], 50).most).toBe(0.03);
  });

  it("shows of ranks that share a column the one that differs most", () => {
    expect(columnsOf(heat.excess[0]!, [0, 1, 2, 3], 2)).toEqual([0, 0.1]);
    expect(columnsOf([0.1, -0.3, 0, 0], [0, 1, 2, 3], 2)).toEqual([-0.3, 0]);
    expect(placeIn(heat, [3, 2, 1, 0], 0, 2)).toBe(1);
  });

  it("covers every rank once, however many columns there are", () => {
    for (const columns of [1, 3, 7, 10]) {
      const all = Array.from({ length: columns }, (_, column) => bounds(column, columns, 10));
      expect(
        all.flatMap(([from, to]) => Array.from({ length: to - from }, (_, i) => from + i)),
      ).toEqual(Array.from({ length: 10 }, (_, i) => i));
    }
  });

  it("names the rank that is latest in all rows together", () => {
    expect(latestRank([[0, 2, -1], [0, 1, 2]])).toEqual({ place: 1, ms: 3 }); // prettier-ignore
    expect(latestRank([])).toBeUndefined();
  });

  it("names stretches of neighbors once", () => {
    expect(runsOf(["a", "a", "b", "a"])).toEqual([
      { name: "a", from: 0, to: 2 },
      { name: "b", from: 2, to: 3 },
      { name: "a", from: 3, to: 4 },
    ]);
  });

  it("takes the middle of an even number as NumPy does", () => {
    expect([median([]), median([3, 1]), median([5, 1, 3])]).toEqual([0, 2, 3]);
  });
});

describe("what a map cannot show", () => {
  it("is a rank that takes no part: it has no color and sets no scale", () => {
    const heat = heatOfExcess(["a"], [[NaN, 0.2, -0.1]]);
    expect(heat.most).toBe(0.2);
    expect(columnsOf(heat.excess[0]!, [0, 1, 2], 3)).toEqual([0, 0.2, -0.1]);
    expect(placeIn(heat, [0, 1, 2], 0, 3)).toBe(1);
  });

  it("is the middle of a long list of ranks", () => {
    const ranks = Array.from({ length: 1000 }, (_, rank) => rank);
    expect(ends(ranks.slice(0, 8), 8)).toEqual([ranks.slice(0, 8), []]);
    expect(ends(ranks, 8)).toEqual([
      [0, 1, 2, 3],
      [998, 999],
    ]);
  });
});
