import { expect, it } from "vitest";
import type { FoundEvents, SearchHits } from "../src/api/types";
import { isFound, nextHit, startsOf } from "../src/model/search_hits";

const events: FoundEvents = {
  event: [10, 11, 20, 21],
  name: [0, 0, 0, 0],
  start_ns: [0, 1, 2, 3],
  duration_ns: [1, 1, 1, 1],
  step: [null, 1, 2, 2],
  rank: [0, 0, 0, 0],
  track: [0, 3, 3, 0],
};
const NOWHERE = { event: null, step: null };

it("from nowhere, the first hit of the step on screen is next, else the first in a step", () => {
  expect(nextHit(events, { ...NOWHERE, step: { step: 2, rank: 0 } }, 1)).toBe(2);
  expect(nextHit(events, { ...NOWHERE, step: { step: 2, rank: 1 } }, 1)).toBe(1);
  expect(nextHit(events, NOWHERE, 1)).toBe(1);
});

it("goes on in order of time, and round at both ends", () => {
  const from = (event: number, by: 1 | -1): number => nextHit(events, { ...NOWHERE, event }, by);
  expect([from(11, 1), from(20, 1), from(21, 1)]).toEqual([2, 3, 1]);
  expect([from(20, -1), from(11, -1)]).toEqual([1, 3]);
});

it("is none if no hit is in a step", () => {
  expect(nextHit({ ...events, step: [null, null, null, null] }, NOWHERE, 1)).toBe(-1);
});

const sgemm = {
  name: "void sgemm<true>(float*)",
  short: "sgemm",
  category: "kernel",
  count: 4,
  total_ns: 4,
  least_ns: 1,
  most_ns: 1,
  longest_event: 10,
};
const hits: SearchHits = { text: "FLOAT", total: 4, names: [sgemm], events };

it("each track has the starts of its own hits", () => {
  expect([undefined, "t0", "t3", "t7"].map((id) => startsOf(hits, id))).toEqual([
    [0, 1, 2, 3],
    [0, 3],
    [1, 2],
    [],
  ]);
});

it("a slice is a hit by its short name, its recorded one, or the text in it", () => {
  const names = ["sgemm", "void sgemm<true>(float*)", "to_float", "relu"];
  expect(names.map(isFound(hits))).toEqual([true, true, true, false]);
});
