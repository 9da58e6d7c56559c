import { describe, expect, it } from "vitest";
import type { Axis, Slices } from "../src/api/types";
import { around, rangeOf, sliceAt, tileOf, tilesOf } from "../src/model/tiles";
import { foldedAtFirst, listed, unlisted } from "../src/model/tracks";

const BINS = 1024;
const axis: Axis = {
  end_ns: 900_000,
  tile_ns: BINS * 1024,
  deepest: 10,
  bins: BINS,
  stages: ["forward"],
  tracks: [],
  counters: [],
};

describe("the tiles of a window", () => {
  it.each([
    [0, 900_000, 1000],
    [100_000, 101_000, 1000],
    [1, 2, 1000],
    [0, 900_000, 100],
  ])("%d to %d on %d pixels cover it with bins of about a pixel", (from, to, pixels) => {
    const tiles = tilesOf(axis, { from, to }, pixels);
    const ranges = tiles.map((one) => rangeOf(axis, one));
    expect(ranges[0]!.from).toBeLessThanOrEqual(from);
    expect(ranges.at(-1)!.to).toBeGreaterThanOrEqual(to);
    const bin = (ranges[0]!.to - ranges[0]!.from) / BINS;
    const pixel = (to - from) / pixels;
    if (bin > 1) expect(bin).toBeLessThanOrEqual(pixel * 1.51);
    expect(tiles.length).toBeLessThanOrEqual(4);
  });

  it("lie in coarser ones, up to the whole axis", () => {
    expect(around({ zoom: 3, tile: 5 })).toEqual({ zoom: 2, tile: 2 });
    expect(around({ zoom: 0, tile: 0 })).toBeNull();
  });
});

const answer: Slices = {
  track: "t0",
  zoom: 1,
  tile: 1,
  exact: true,
  slices: {
    depth: [0, 1, 1],
    start_ns: [-100, 10, 30],
    duration_ns: [500, 10, 0],
    event: [7, 8, 9],
    name: [0, 1, 1],
    stage: [-1, 0, 0],
  },
  bins: { depth: [], bin: [], percent: [], stage: [] },
  strings: ["step", "mm"],
};

describe("an answer as a tile", () => {
  const tile = tileOf(axis, answer);
  const from = tile.from;
  const pieces = [{ tile, from, to: tile.to }];

  it("has its slices by depth, since the trace's start", () => {
    expect(tile.lines.map((one) => [...one.event])).toEqual([[7], [8, 9]]);
    expect(tile.lines[0]!.start[0]).toBe(from - 100);
  });

  it("finds the slice at a time, and one without length that is near", () => {
    expect(sliceAt(pieces, 1, from + 15, 0)).toMatchObject({ event: 8, name: "mm", stage: 0 });
    expect(sliceAt(pieces, 1, from + 31, 2)?.event).toBe(9);
    expect(sliceAt(pieces, 1, from + 25, 2)).toBeNull();
    expect(sliceAt(pieces, 4, from + 15, 0)).toBeNull();
  });
});

describe("the listed tracks", () => {
  const track = (id: string, rank: number, busy_ns: number, depths = 1) => ({
    id,
    kind: "cpu",
    name: id,
    rank,
    device: null,
    depths,
    slices: 5,
    busy_ns,
  });
  const tracks = [track("t0", 0, 500, 30), track("t1", 0, 0), track("t2", 1, 400, 30)];
  const all: Axis = { ...axis, end_ns: 1000, tracks };
  const ids = (rank: number, every = false, pinned: string[] = []): string[] =>
    listed(all, { rank, every, pinned }).map((one) => one.id);

  it("are those of the rank that work, or all, pinned ones first", () => {
    expect(ids(0)).toEqual(["t0"]);
    expect(ids(0, true)).toEqual(["t0", "t1", "t2"]);
    expect(ids(0, false, ["t2"])).toEqual(["t2", "t0"]);
    expect(unlisted(all, listed(all, { rank: 0, every: false, pinned: [] }))).toBe(2);
  });

  it("a deep one is closed at first unless it is the busiest thread", () => {
    const deep = { ...all, tracks: [...tracks, track("t3", 0, 90, 30)] };
    expect(foldedAtFirst(deep, deep.tracks[0]!)).toBe(false);
    expect(foldedAtFirst(deep, deep.tracks[3]!)).toBe(true);
  });
});
