import { expect, it } from "vitest";
import type { Details, Slices } from "../src/api/types";
import { launchesOf, placeOf } from "../src/model/launches";
import { tileOf } from "../src/model/tiles";

const kernel = (event: number, launch: number) => ({ event, launch });
const details = (part: object): Details => part as Details;

it("a kernel has the arrow from its launch, all else those of its longest work", () => {
  const work = Array.from({ length: 30 }, (_, i) => kernel(100 + i, i));
  const own = details({ kind: "event", event: 7, launch: { event: 3 }, device_work: { rows: [] } });
  expect(launchesOf(own)).toEqual([[3, 7]]);
  const module = details({
    kind: "module",
    event: null,
    launch: null,
    device_work: { rows: work },
  });
  expect(launchesOf(module)[0]).toEqual([0, 100]);
  expect(launchesOf(module)).toHaveLength(12);
  expect(launchesOf(details({ ...module, kind: "step" }))).toEqual([]);
  expect(launchesOf(null)).toEqual([]);
});

it("an event is found on the track and at the depth where it is drawn", () => {
  const axis = {
    tile_ns: 1024,
    bins: 1024,
    deepest: 0,
    end_ns: 1000,
    stages: [],
    tracks: [],
    counters: [],
  };
  const wire: Slices = {
    track: "t4",
    zoom: 0,
    tile: 0,
    exact: true,
    slices: {
      depth: [0, 1],
      start_ns: [5, 6],
      duration_ns: [9, 2],
      event: [70, 71],
      name: [0, 0],
      stage: [-1, -1],
    },
    bins: { depth: [], bin: [], percent: [], stage: [] },
    strings: ["x"],
  };
  const drawn = new Map([["t4", [{ tile: tileOf(axis, wire), from: 0, to: 1024 }]]]);
  expect(placeOf(drawn, 71)).toEqual({ track: "t4", depth: 1, start: 6, end: 8 });
  expect(placeOf(drawn, 72)).toBeNull();
});
