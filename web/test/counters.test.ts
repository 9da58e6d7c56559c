import { describe, expect, it } from "vitest";
import type { Axis, CounterRow, CounterTile as Wire } from "../src/api/types";
import {
  columnExtremes,
  counterText,
  counterTileOf,
  listedCounters,
  rangeText,
  scaleOf,
} from "../src/model/counters";
import { fillColumns } from "../src/render/columns";
import { SvgContext } from "../src/render/svg_context";

const axis: Axis = {
  end_ns: 1024,
  tile_ns: 1024,
  deepest: 0,
  bins: 1024,
  stages: [],
  tracks: [],
  counters: [],
};

function pieces(start_ns: number[], least: number[], most = least) {
  const wire: Wire = { counter: "c0", zoom: 0, tile: 0, exact: true, start_ns, least, most };
  return [{ tile: counterTileOf(axis, wire), from: 0, to: 1024 }];
}

const window = { from: 0, to: 100 };

describe("the columns of a counter", () => {
  it("have the least and the most of all that holds in them, and nothing before the first", () => {
    // From 25 to 26 it is 9, within a column of 10; at 40 it is 7 for a moment.
    const shown = pieces([12, 25, 26, 40, 40, 60], [1, 9, 2, 7, 3, 3]);
    const { least, most } = columnExtremes(shown, window, 10, false);
    expect([...least]).toEqual([NaN, 1, 1, 2, 3, 3, 3, 3, 3, 3]);
    expect([...most]).toEqual([NaN, 1, 9, 2, 7, 3, 3, 3, 3, 3]);
  });

  it("of a share have its mean, by how long it holds", () => {
    const shown = pieces([0, 15, 18, 42], [0, 1, 0, 1]);
    const { least, most } = columnExtremes(shown, window, 10, true);
    [0, 0.3, 0, 0, 0.8, 1].forEach((mean, at) => expect(least[at]).toBeCloseTo(mean));
    expect(most).toEqual(least);
  });

  it("keep what bins know: a run from its least to its most", () => {
    const { least, most } = columnExtremes(pieces([0, 50], [1, 4], [8, 5]), window, 2, false);
    expect([...least, ...most]).toEqual([1, 4, 8, 5]);
  });
});

const row = (least: number, most: number, rest: Partial<CounterRow> = {}): CounterRow => ({
  id: "c0",
  name: "",
  short: "",
  rank: 0,
  device: 0,
  unit: "",
  least,
  most,
  ...rest,
});

it.each([
  [0, 10, 0, 10],
  [6, 10, 0, 10],
  [191, 192, 191, 192], // hardly varies
  [-5, 3, -5, 3],
  [7, 7, 0, 7],
  [0, 0, 0, 1],
  [-2, -2, -2, 1],
])("values from %d to %d are drawn from %d to %d", (least, most, from, to) => {
  expect(scaleOf(row(least, most))).toEqual({ from, to });
});

it("values have their unit", () => {
  expect(counterText(0.5, "share")).toBe("50%");
  expect(counterText(-1500, "bytes")).toBe("−1.50\u202fkB");
  expect(rangeText(1, 1.001, "")).toBe("1.00");
  expect(rangeText(1e6, 2e6, "bytes")).toBe("1.00\u202fMB to 2.00\u202fMB");
});

it("the first counters of the rank are listed, or all", () => {
  const counters = Array.from({ length: 12 }, (_, i) => row(0, 1, { id: `c${i}`, rank: i && 1 }));
  const ids = (rank: number, every = false) =>
    listedCounters({ ...axis, counters }, { rank, every, pinned: [] }).map((one) => one.id);
  expect(ids(0)).toEqual(["c0"]);
  expect(ids(1)).toHaveLength(8);
  expect(ids(0, true)).toHaveLength(12);
});

describe("the lane of a counter", () => {
  /** The outlines that are filled for some columns of 10 px. */
  function outlines(bottom: number[], top: number[]): string | undefined {
    const context = new SvgContext(null, { next: 0 });
    fillColumns(
      context as unknown as CanvasRenderingContext2D,
      Float64Array.from(bottom),
      Float64Array.from(top),
      10,
    );
    return / d="([^"]*)"/.exec(context.svg)?.[1];
  }

  it("goes up and down around columns next to each other, with corners only where they differ", () => {
    expect(outlines([30, 30, 30, 30], [20, 20, 5, 20])).toBe(
      "M0 20L20 20L20 5L30 5L30 20L40 20L40 30L0 30Z",
    );
    expect(outlines([30, 20], [20, 5])).toBe("M0 20L10 20L10 5L20 5L20 20L10 20L10 30L0 30Z");
  });

  it("has nothing where nothing is known", () => {
    expect(outlines([NaN, 30, NaN, NaN, 30], [NaN, 20, NaN, NaN, 10])).toBe(
      "M10 20L20 20L20 30L10 30ZM40 10L50 10L50 30L40 30Z",
    );
    expect(outlines([NaN], [NaN])).toBe("");
  });
});
